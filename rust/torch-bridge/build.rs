//! Generates and compiles the C++ half of the bridge. Torch's headers are not needed: the store's
//! class is only declared in `include/store_adapter.hpp` and defined by the extension.

fn main() {
    println!("cargo:rerun-if-changed=src/lib.rs");
    println!("cargo:rerun-if-changed=include/store_adapter.hpp");
    cxx_build::bridge("src/lib.rs")
        .include("include")
        .std("c++20")
        .flag("-fvisibility=hidden")
        .compile("ferrocomm_torch_bridge_cxx");
}
