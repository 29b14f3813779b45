#!/bin/sh
# Compares the symbols a built libferrocomm exports with the committed list.
# usage: check.sh LIBFERROCOMM.SO [--write]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
list=$here/libferrocomm.txt
library=${1:?usage: check.sh LIBFERROCOMM.SO [--write]}

exported=$(nm -D --defined-only "$library" | awk '{ print $NF }' | LC_ALL=C sort)
if [ "${2:-}" = --write ]; then
    printf '%s\n' "$exported" >"$list"
    exit
fi
if ! printf '%s\n' "$exported" | diff -u "$list" -; then
    echo "exports: $library does not export what $list says" >&2
    exit 1
fi
strangers=$(printf '%s\n' "$exported" | grep -cv '^fc_' || true)
if [ "$strangers" -ne 0 ]; then
    echo "exports: $strangers symbols of $library do not start with fc_" >&2
    exit 1
fi
echo "exports: $(wc -l <"$list") symbols, all as listed"
