//! Exact command lists.
