-- The state of one cluster: one revision, one leader row, and records in envelopes that only the program can read.
-- A row in `revision` or `leader` appears with the first commit and the first leadership.
-- The rows that change all the time have room in their page for their next versions, so that no index is written.

CREATE TABLE revision (
    one    smallint PRIMARY KEY CHECK (one = 1),
    number bigint NOT NULL CHECK (number > 0)
) WITH (fillfactor = 10);

-- A commit holds this row FOR KEY SHARE. What changes a column under a unique index conflicts with that, other updates do not: a
-- takeover, which draws a new number, waits for a commit under way and makes later ones fail; a renewal does neither.
CREATE TABLE leader (
    one        smallint PRIMARY KEY CHECK (one = 1),
    -- Of the leadership; grows with each.
    number     bigint NOT NULL UNIQUE CHECK (number > 0),
    token      bytea NOT NULL CHECK (octet_length(token) = 16),
    -- Who it is, for people.
    holder     text NOT NULL,
    -- How long it lasts from each renewal on.
    ttl_ms     bigint NOT NULL CHECK (ttl_ms > 0),
    -- When it ends if it is not renewed, by this database's clock.
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 10);

CREATE TABLE record (
    kind text NOT NULL,
    page bigint NOT NULL CHECK (page >= 0),
    body bytea NOT NULL,
    PRIMARY KEY (kind, page)
) WITH (fillfactor = 70);

-- Bodies are dense: trying to compress them would only cost time.
ALTER TABLE record ALTER COLUMN body SET STORAGE EXTERNAL;
