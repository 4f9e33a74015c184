//! Lease arithmetic.
