-- The schema of version 1 as it was. Never to be changed.
CREATE TABLE episode_values (
    run_id INTEGER NOT NULL,
    sequence BIGINT NOT NULL,
    name_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    epoch BIGINT,
    value DOUBLE,
    PRIMARY KEY (run_id, sequence, name_id, number)
)
 WITHOUT ROWID;

CREATE TABLE episodes (
    run_id INTEGER NOT NULL,
    sequence BIGINT NOT NULL,
    number INTEGER NOT NULL,
    start_epoch BIGINT,
    epoch BIGINT,
    episode_return DOUBLE,
    episode_length DOUBLE,
    PRIMARY KEY (run_id, sequence, number)
)
 WITHOUT ROWID;

CREATE TABLE epochs (
    run_id INTEGER NOT NULL,
    sequence BIGINT NOT NULL,
    start_epoch BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    attributes JSON NOT NULL,
    PRIMARY KEY (run_id, sequence)
)
 WITHOUT ROWID;

CREATE TABLE evaluations (
    run_id INTEGER NOT NULL,
    sequence BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    agent_step BIGINT NOT NULL,
    policy_uri TEXT,
    suite TEXT NOT NULL,
    time DOUBLE NOT NULL,
    PRIMARY KEY (run_id, sequence)
)
 WITHOUT ROWID;

CREATE TABLE events (
    run_id INTEGER NOT NULL,
    sequence BIGINT NOT NULL,
    log_id INTEGER NOT NULL,
    time DOUBLE NOT NULL,
    kind TEXT NOT NULL,
    payload JSON,
    PRIMARY KEY (run_id, sequence)
)
 WITHOUT ROWID;

CREATE TABLE heartbeats (
    run_id INTEGER NOT NULL,
    sequence BIGINT NOT NULL,
    time DOUBLE NOT NULL,
    epoch BIGINT,
    agent_step BIGINT,
    numbers JSON NOT NULL,
    PRIMARY KEY (run_id, sequence)
)
 WITHOUT ROWID;

CREATE TABLE logs (
    id INTEGER NOT NULL,
    digest VARCHAR(64) NOT NULL,
    path TEXT NOT NULL,
    bytes_read BIGINT NOT NULL,
    lines_read BIGINT NOT NULL,
    tail VARCHAR(64) NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (digest)
);

CREATE TABLE metric_names (
    id INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (name)
);

CREATE TABLE metric_values (
    run_id INTEGER NOT NULL,
    name_id INTEGER NOT NULL,
    sequence BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    agent_step BIGINT NOT NULL,
    value DOUBLE,
    PRIMARY KEY (run_id, name_id, sequence)
)
 WITHOUT ROWID;

CREATE TABLE policies (
    run_id INTEGER NOT NULL,
    sequence BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    agent_step BIGINT NOT NULL,
    uri TEXT NOT NULL,
    time DOUBLE NOT NULL,
    PRIMARY KEY (run_id, sequence)
)
 WITHOUT ROWID;

CREATE TABLE runs (
    id INTEGER NOT NULL,
    run TEXT NOT NULL,
    name TEXT NOT NULL,
    attributes JSON NOT NULL,
    started DOUBLE,
    ended DOUBLE,
    outcome TEXT,
    reason TEXT,
    last_event DOUBLE NOT NULL,
    last_heartbeat DOUBLE,
    epoch BIGINT,
    agent_step BIGINT,
    PRIMARY KEY (id),
    UNIQUE (run)
);

CREATE TABLE schema_version (
    version INTEGER NOT NULL,
    PRIMARY KEY (version)
);

CREATE TABLE simulation_scores (
    run_id INTEGER NOT NULL,
    sequence BIGINT NOT NULL,
    simulation TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    category TEXT NOT NULL,
    score DOUBLE,
    PRIMARY KEY (run_id, sequence, simulation)
)
 WITHOUT ROWID;
