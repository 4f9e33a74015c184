-- The state of one cluster: one revision, one leader row, and records in envelopes that only the program can read.
-- A row in `revision` or `leader` appears with the first commit and the first leadership.

CREATE TABLE revision (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    number INTEGER NOT NULL CHECK (number > 0)
) STRICT;

CREATE TABLE leader (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    number INTEGER NOT NULL CHECK (number > 0),
    token  BLOB NOT NULL CHECK (length(token) = 16),
    holder TEXT NOT NULL
) STRICT;

CREATE TABLE record (
    kind TEXT NOT NULL,
    page INTEGER NOT NULL CHECK (page >= 0),
    body BLOB NOT NULL,
    PRIMARY KEY (kind, page)
) STRICT;
