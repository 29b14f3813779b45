#!/bin/sh
# Builds the C++ test against a built libferrocomm and runs it.
# usage: run.sh FOLDER_OF_LIBFERROCOMM [BUILD_FOLDER]      environment: CXX, CXXFLAGS
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

# The second unit, which is all header, must be quiet in both standards.
for standard in 17 20; do
    "${CXX:-c++}" -std=c++$standard -Wall -Wextra -Wpedantic -Werror -I"$here/../../include" \
        -fsyntax-only "$here/second_unit.cpp"
done

# shellcheck disable=SC2086  # CXXFLAGS is a list
"${CXX:-c++}" -std=c++17 -O1 -g -Wall -Wextra -Wpedantic -Werror ${CXXFLAGS:-} \
    -I"$here/../../include" "$here"/main.cpp "$here"/second_unit.cpp \
    -L"$library" -lferrocomm -Wl,-rpath,"$library" -pthread -o "$build/ferrocomm_cpp_test"
"$build/ferrocomm_cpp_test"
