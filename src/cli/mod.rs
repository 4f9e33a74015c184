//! To be written.

pub mod executor;
pub mod journal;
