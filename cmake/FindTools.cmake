# Finds what the build needs and says in words what is missing.

find_package(Python COMPONENTS Interpreter Development.Module)
if(NOT Python_FOUND)
  message(FATAL_ERROR "Python with its development files (Python.h) was not found; install them "
                      "(Debian: python3-dev) or set Python_EXECUTABLE.")
endif()

find_program(CARGO cargo HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin")
if(NOT CARGO)
  message(FATAL_ERROR "cargo was not found; install Rust 1.89 or later (https://rustup.rs) or set "
                      "-DCARGO=<path>.")
endif()

# Not `import torch`: it would import torchcomms, which is being built.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
          "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
  OUTPUT_VARIABLE TORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT EXISTS "${TORCH_ROOT}/include/torch/headeronly/version.h")
  message(FATAL_ERROR "torch (2.11 or later, with its headers) was not found by ${Python_EXECUTABLE}; "
                      "install torch there and build with `pip install --no-build-isolation`.")
endif()
file(STRINGS "${TORCH_ROOT}/include/torch/headeronly/version.h" TORCH_VERSION_LINES
     REGEX "define TORCH_VERSION_(MAJOR|MINOR) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" TORCH_VERSION
                     "${TORCH_VERSION_LINES}")
if(TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "torch ${TORCH_VERSION} at ${TORCH_ROOT} is too old; 2.11 is the first one "
                      "with torch.distributed's use_torchcomms switch.")
endif()
message(STATUS "Building for torch ${TORCH_VERSION} at ${TORCH_ROOT}")

# `find_package(Torch)` asks for a CUDA toolkit on CUDA builds of torch; nothing here uses CUDA.
foreach(name c10 torch_cpu torch_python)
  add_library(torch::${name} SHARED IMPORTED)
  set_target_properties(torch::${name} PROPERTIES IMPORTED_LOCATION
                                                  "${TORCH_ROOT}/lib/lib${name}.so")
endforeach()
add_library(torch_headers INTERFACE)
target_include_directories(
  torch_headers SYSTEM INTERFACE "${TORCH_ROOT}/include"
                                 "${TORCH_ROOT}/include/torch/csrc/api/include")
