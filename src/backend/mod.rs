//! What the store and the election of one kind share.

pub mod sqlite;

use crate::types::Token;

/// What makes a leadership the precondition of a write, inside the store's own transaction (P1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The leader row still carries this number and this token. The token tells leaderships apart where a restored database drew a
    /// number twice.
    Sql {
        /// Drawn from the database; grows with each leadership.
        number: i64,
        /// Drawn at random.
        token: Token,
    },
}

impl Fence {
    /// The token of the leadership, as `meta` carries it.
    pub fn token(&self) -> Token {
        match self {
            Fence::Sql { token, .. } => *token,
        }
    }
}
