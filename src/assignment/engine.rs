//! Decides what happens when.

/// See the module's documentation.
pub struct Engine;
