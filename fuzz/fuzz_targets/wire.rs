#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ferrocomm_host::fuzzing::wire(bytes));
