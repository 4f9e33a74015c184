//! Finds what is wrong with a state.
