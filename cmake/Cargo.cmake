# One rule for everything in Rust: the engine (libferrocomm.so) and the bridge that is linked into
# the extension. Gives the targets `ferrocomm` and `ferrocomm_torch_bridge`.

set(CARGO_TARGET_DIR "${CMAKE_BINARY_DIR}/cargo" CACHE PATH "Where cargo builds")
set(FERROCOMM_LIBRARY "${CARGO_TARGET_DIR}/release/libferrocomm.so")
set(BRIDGE_LIBRARY "${CARGO_TARGET_DIR}/release/libferrocomm_torch_bridge.a")
set(BRIDGE_INCLUDE "${CMAKE_BINARY_DIR}/include")
set(CXX_HEADERS rust/cxx.h ferrocomm-torch-bridge/src/lib.rs.h)

file(GLOB_RECURSE RUST_SOURCES CONFIGURE_DEPENDS rust/*.rs rust/*.toml rust/*.hpp)
list(APPEND RUST_SOURCES Cargo.toml Cargo.lock)

# cxx leaves links to its headers in cargo's tree; copies with a stable time keep C++ from
# recompiling after every edit of the engine.
set(COPY_HEADERS)
set(COPIED_HEADERS)
foreach(header ${CXX_HEADERS})
  list(APPEND COPY_HEADERS COMMAND "${CMAKE_COMMAND}" -E copy_if_different
       "${CARGO_TARGET_DIR}/cxxbridge/${header}" "${BRIDGE_INCLUDE}/${header}")
  list(APPEND COPIED_HEADERS "${BRIDGE_INCLUDE}/${header}")
  cmake_path(GET header PARENT_PATH folder)
  file(MAKE_DIRECTORY "${BRIDGE_INCLUDE}/${folder}")
endforeach()

add_custom_command(
  OUTPUT "${CMAKE_BINARY_DIR}/cargo.stamp"
  BYPRODUCTS "${FERROCOMM_LIBRARY}" "${BRIDGE_LIBRARY}" ${COPIED_HEADERS}
  COMMAND "${CMAKE_COMMAND}" -E env "CXX=${CMAKE_CXX_COMPILER}" "${CARGO}" build --locked --release
          --target-dir "${CARGO_TARGET_DIR}" -p ferrocomm-capi -p ferrocomm-torch-bridge
  ${COPY_HEADERS}
  COMMAND "${CMAKE_COMMAND}" -E touch "${CMAKE_BINARY_DIR}/cargo.stamp"
  WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}"
  DEPENDS ${RUST_SOURCES}
  USES_TERMINAL VERBATIM)
add_custom_target(cargo_build DEPENDS "${CMAKE_BINARY_DIR}/cargo.stamp")

add_library(ferrocomm SHARED IMPORTED)
set_target_properties(ferrocomm PROPERTIES IMPORTED_LOCATION "${FERROCOMM_LIBRARY}")
target_include_directories(ferrocomm INTERFACE include)
add_library(ferrocomm_torch_bridge STATIC IMPORTED)
set_target_properties(ferrocomm_torch_bridge PROPERTIES IMPORTED_LOCATION "${BRIDGE_LIBRARY}")
target_include_directories(ferrocomm_torch_bridge INTERFACE rust/torch-bridge/include
                                                            "${BRIDGE_INCLUDE}")
target_link_libraries(ferrocomm_torch_bridge INTERFACE ${CMAKE_DL_LIBS})
