//! Finds what is wrong with a state.

use crate::assignment::state::State;

/// To be written.
#[derive(Debug, PartialEq)]
pub struct Violation;
impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("")
    }
}
/// To be written.
pub fn check(_state: &State) -> Vec<Violation> {
    Vec::new()
}
/// To be written.
pub fn check_step(_before: &State, _after: &State) -> Vec<Violation> {
    Vec::new()
}
