-- The hot table: rows are inserted and deleted, never updated. The id is drawn inside the INSERT, after the caller took the
-- locks of its own rows, and one at a time (CACHE 1): so writers that wait for one another get ids in that order.
CREATE TABLE {{lane}} (
    id           bigint      GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    message_id   uuid        NOT NULL,
    exchange     text        NOT NULL,
    routing_key  text        NOT NULL,
    ordering_key text,
    properties   jsonb,
    headers      jsonb,
    payload      bytea       NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (octet_length(exchange) <= 255 AND octet_length(routing_key) <= 255)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 5000,
    toast.autovacuum_vacuum_cost_delay = 0
);
