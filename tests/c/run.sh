#!/bin/sh
# Builds the C test against a built libferrocomm and runs it.
# usage: run.sh FOLDER_OF_LIBFERROCOMM [BUILD_FOLDER]      environment: CC, CFLAGS, RUN_UNDER
set -eu
here=$(cd "$(dirname "$0")" && pwd)
library=$(cd "${1:?usage: run.sh FOLDER_OF_LIBFERROCOMM [BUILD_FOLDER]}" && pwd)
if [ $# -gt 1 ]; then
    mkdir -p "$2"
    build=$2
else
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
fi

# The header alone, twice, must be quiet under every warning.
for _ in 1 2; do echo '#include <ferrocomm.h>'; done >"$build/header.c"
"${CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic -Werror -I"$here/../../include" -fsyntax-only \
    "$build/header.c"

# shellcheck disable=SC2086  # CFLAGS is a list
"${CC:-cc}" -std=c11 -O1 -g -Wall -Wextra -Wpedantic -Werror ${CFLAGS:-} \
    -I"$here/../../include" "$here"/*.c \
    -L"$library" -lferrocomm -Wl,-rpath,"$library" -pthread -o "$build/ferrocomm_c_test"
# shellcheck disable=SC2086  # RUN_UNDER is a command with its options
${RUN_UNDER:-} "$build/ferrocomm_c_test"
