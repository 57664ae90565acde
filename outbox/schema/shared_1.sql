-- Rows whose sending failed, and so only few: they stay in their lane's table and are not tried before next_attempt_at.
CREATE TABLE {{table "retry"}} (
    lane            smallint    NOT NULL,
    id              bigint      NOT NULL,
    attempts        integer     NOT NULL,
    next_attempt_at timestamptz NOT NULL,
    last_error      text,
    PRIMARY KEY (lane, id)
);

-- Rows that were given up. They have a key of their own: after a failover of the database a lane may give an id again.
CREATE TABLE {{table "parked"}} (
    parked_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane         smallint    NOT NULL,
    id           bigint      NOT NULL,
    message_id   uuid        NOT NULL,
    exchange     text        NOT NULL,
    routing_key  text        NOT NULL,
    ordering_key text,
    properties   jsonb,
    headers      jsonb,
    payload      bytea       NOT NULL,
    created_at   timestamptz NOT NULL,
    attempts     integer     NOT NULL,
    reason       text        NOT NULL,
    parked_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON {{table "parked"}} (message_id);

-- Rows that are not to be sent before available_at; then they move to their lane's table.
CREATE TABLE {{table "scheduled"}} (
    scheduled_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane         smallint    NOT NULL,
    available_at timestamptz NOT NULL,
    message_id   uuid        NOT NULL,
    exchange     text        NOT NULL,
    routing_key  text        NOT NULL,
    ordering_key text,
    properties   jsonb,
    headers      jsonb,
    payload      bytea       NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (octet_length(exchange) <= 255 AND octet_length(routing_key) <= 255)
);
CREATE INDEX ON {{table "scheduled"}} (lane, available_at, scheduled_id);

-- Who leads a lane, where that is settled by rows instead of session locks.
CREATE TABLE {{table "lease"}} (
    lane       smallint    PRIMARY KEY,
    owner      uuid        NOT NULL,
    term       bigint      NOT NULL,
    expires_at timestamptz NOT NULL
);

-- What was sent, by day, when it is to be kept. Days without a partition of their own go to the default one.
CREATE TABLE {{table "archive"}} (
    lane         smallint    NOT NULL,
    id           bigint      NOT NULL,
    message_id   uuid        NOT NULL,
    exchange     text        NOT NULL,
    routing_key  text        NOT NULL,
    ordering_key text,
    properties   jsonb,
    headers      jsonb,
    payload      bytea       NOT NULL,
    created_at   timestamptz NOT NULL,
    sent_at      timestamptz NOT NULL DEFAULT clock_timestamp()
) PARTITION BY RANGE (sent_at);
CREATE TABLE {{table "archive_default"}} PARTITION OF {{table "archive"}} DEFAULT;
