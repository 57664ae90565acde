-- One row for each key that a consumer has worked on. It is inserted by the transaction that does the work and so appears and
-- vanishes with it. Old rows are found by reading the table in its own order, a piece at a time: an index on done_at would
-- cost every message more than that. result and fingerprint are of keys that are answered with the first result.
CREATE TABLE {{keys}} (
    consumer    text COLLATE "C" NOT NULL CHECK (octet_length(consumer) BETWEEN 1 AND 255),
    key         {{keyType}} NOT NULL,
    done_at     timestamptz NOT NULL DEFAULT now(),
    fingerprint bytea,
    result      bytea,
    PRIMARY KEY (consumer, key)
);

-- How far the removal of a consumer's old keys has come, and when it starts anew; whoever has this row locked does it.
CREATE TABLE {{sweep}} (
    consumer text COLLATE "C" PRIMARY KEY,
    block    bigint NOT NULL DEFAULT 0,
    due_at   timestamptz NOT NULL DEFAULT now()
);
