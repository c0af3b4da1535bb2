-- Which file this is: drawn once, when the file is made or first opened by a version that knows it.
-- A node that remembers it notices that another file has taken the place of the one it knew.
CREATE TABLE oncekey_epoch (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    epoch BLOB    NOT NULL
) STRICT;
INSERT INTO oncekey_epoch (id, epoch) VALUES (1, randomblob(16));
