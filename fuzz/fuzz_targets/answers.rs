#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| shard_manager_fuzz::run(&shard_manager::fuzzing::ANSWERS, data));
