//! Real servers and bad networks, for the test binaries that name this module.

// Each binary uses its part.
#![allow(dead_code)]

pub mod etcd;
pub mod proxy;
