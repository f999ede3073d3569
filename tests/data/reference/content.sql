-- What the reference server stores for a short story of two clients in the partition `default`.
-- Bytes are written x'..', as SQLite does.

INSERT INTO sync_schema_meta(id, schema_version, layouts) VALUES (1, 1,
  '{"lists":[{"name":"id","type":"string","nullable":false},{"name":"name","type":"string","nullable":false},{"name":"owner","type":"string","nullable":true}],"todos":[{"name":"id","type":"string","nullable":false},{"name":"list_id","type":"string","nullable":false},{"name":"title","type":"string","nullable":false},{"name":"done","type":"boolean","nullable":false},{"name":"position","type":"integer","nullable":true},{"name":"notes","type":"string","nullable":true}]}');
INSERT INTO sync_partitions(partition, max_commit_seq, horizon_seq) VALUES ('default', 5, 0);
INSERT INTO sync_partition_registry(partition, log_epoch, epoch_required, last_authenticated_at_ms)
  VALUES ('default', '5b1f0d6e2c9a4783b0e4d1a97f3c8265', FALSE, 1767000005000);

-- 1: ada makes the list and a first entry, before commits had a writer's version.
INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
  VALUES ('default', 1, 'ada-phone', 'ada-1', 'ada', 1767000001000, NULL);
INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload) VALUES
  ('default', 1, 0, 'lists', 'groceries', 1, 1, '{"list_id":"groceries"}', x'000900000067726f6365726965730900000047726f63657269657303000000616461'),
  ('default', 1, 1, 'todos', 't1', 1, 1, '{"list_id":"groceries"}', x'300200000074310900000067726f63657269657305000000627265616400');
-- 2: bob adds one.
INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
  VALUES ('default', 2, 'bob-laptop', 'bob-1', 'bob', 1767000002000, 1);
INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload) VALUES
  ('default', 2, 0, 'todos', 't2', 1, 1, '{"list_id":"groceries"}', x'200200000074320900000067726f636572696573040000006d696c6b000200000000000000');
-- 3: ada renames the list and an entry.
INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
  VALUES ('default', 3, 'ada-phone', 'ada-2', 'ada', 1767000003000, 1);
INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload) VALUES
  ('default', 3, 0, 'lists', 'groceries', 1, 2, '{"list_id":"groceries"}', x'000900000067726f63657269657304000000466f6f6403000000616461'),
  ('default', 3, 1, 'todos', 't1', 1, 2, '{"list_id":"groceries"}', x'300200000074310900000067726f6365726965730900000072796520627265616400');
-- 4: bob deletes his entry and adds another.
INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
  VALUES ('default', 4, 'bob-laptop', 'bob-2', 'bob', 1767000004000, 1);
INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload) VALUES
  ('default', 4, 0, 'todos', 't2', 2, NULL, '{"list_id":"groceries"}', NULL),
  ('default', 4, 1, 'todos', 't3', 1, 1, '{"list_id":"groceries"}', x'000200000074330900000067726f636572696573050000004bc3a4736500030000000000000009000000426572676bc3a47365');
-- 5: ada ticks one off, and adds one to another list.
INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
  VALUES ('default', 5, 'ada-phone', 'ada-3', 'ada', 1767000005000, 1);
INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload) VALUES
  ('default', 5, 0, 'todos', 't1', 1, 3, '{"list_id":"groceries"}', x'300200000074310900000067726f6365726965730900000072796520627265616401'),
  ('default', 5, 1, 'todos', 't4', 1, 1, '{"list_id":"hardware"}', x'30020000007434080000006861726477617265050000006e61696c7300');

INSERT INTO sync_change_scopes(partition, tbl, var, value, commit_seq) VALUES
  ('default', 'lists', 'list_id', 'groceries', 1), ('default', 'todos', 'list_id', 'groceries', 1),
  ('default', 'todos', 'list_id', 'groceries', 2), ('default', 'lists', 'list_id', 'groceries', 3),
  ('default', 'todos', 'list_id', 'groceries', 3), ('default', 'todos', 'list_id', 'groceries', 4),
  ('default', 'todos', 'list_id', 'groceries', 5), ('default', 'todos', 'list_id', 'hardware', 5);

-- The rows as they stand. The list's update is from before column versions: it has none.
INSERT INTO lists(_sync_partition, _sync_row_id, id, name, owner,
    _sync_server_version, _sync_scopes, _sync_payload, _sync_column_versions) VALUES
  ('default', 'groceries', 'groceries', 'Food', 'ada', 2, '{"list_id":"groceries"}', x'000900000067726f63657269657304000000466f6f6403000000616461', NULL);
INSERT INTO todos(_sync_partition, _sync_row_id, id, list_id, title, done, position, notes,
    _sync_server_version, _sync_scopes, _sync_payload, _sync_column_versions) VALUES
  ('default', 't1', 't1', 'groceries', 'rye bread', TRUE, NULL, NULL, 3, '{"list_id":"groceries"}', x'300200000074310900000067726f6365726965730900000072796520627265616401', x'02020303'),
  ('default', 't3', 't3', 'groceries', 'Käse', FALSE, 3, 'Bergkäse', 1, '{"list_id":"groceries"}', x'000200000074330900000067726f636572696573050000004bc3a4736500030000000000000009000000426572676bc3a47365', NULL),
  ('default', 't4', 't4', 'hardware', 'nails', FALSE, NULL, NULL, 1, '{"list_id":"hardware"}', x'30020000007434080000006861726477617265050000006e61696c7300', NULL);
INSERT INTO sync_row_scopes(partition, tbl, var, value, row_id) VALUES
  ('default', 'lists', 'list_id', 'groceries', 'groceries'), ('default', 'todos', 'list_id', 'groceries', 't1'),
  ('default', 'todos', 'list_id', 'groceries', 't3'), ('default', 'todos', 'list_id', 'hardware', 't4');
INSERT INTO sync_tombstones(partition, tbl, row_id, commit_seq) VALUES ('default', 'todos', 't2', 4);

-- Every decided commit has its result; bob's third one lost against ada's renaming. The first is from
-- before results had a time.
INSERT INTO sync_push_results(partition, client_id, client_commit_id, result) VALUES
  ('default', 'ada-phone', 'ada-1', '{"status":"applied","commitSeq":1,"results":[{"opIndex":0,"status":"applied"},{"opIndex":1,"status":"applied"}]}'),
  ('default', 'bob-laptop', 'bob-1', '{"status":"applied","commitSeq":2,"recordedAtMs":1767000002000,"results":[{"opIndex":0,"status":"applied"}]}'),
  ('default', 'ada-phone', 'ada-2', '{"status":"applied","commitSeq":3,"recordedAtMs":1767000003000,"results":[{"opIndex":0,"status":"applied"},{"opIndex":1,"status":"applied"}]}'),
  ('default', 'bob-laptop', 'bob-2', '{"status":"applied","commitSeq":4,"recordedAtMs":1767000004000,"results":[{"opIndex":0,"status":"applied"},{"opIndex":1,"status":"applied"}]}'),
  ('default', 'ada-phone', 'ada-3', '{"status":"applied","commitSeq":5,"recordedAtMs":1767000005000,"results":[{"opIndex":0,"status":"applied"},{"opIndex":1,"status":"applied"}]}'),
  ('default', 'bob-laptop', 'bob-3', '{"status":"rejected","recordedAtMs":1767000006000,"results":[{"opIndex":0,"status":"conflict","code":"sync.version_conflict","message":"the row is newer","serverVersion":3,"serverRow":"MAIAAAB0MQkAAABncm9jZXJpZXMJAAAAcnllIGJyZWFkAQ==","conflictColumns":"BA=="}]}');

INSERT INTO sync_clients(partition, client_id, actor_id, wire_version, cursor, subscriptions, updated_at_ms) VALUES
  ('default', 'ada-phone', 'ada', 3, 5, '[{"id":"todos","table":"todos","scopes":{"list_id":["groceries"]}}]', 1767000005000),
  ('default', 'bob-laptop', 'bob', 3, 3, '[{"id":"todos","table":"todos","scopes":{"list_id":["groceries"]}}]', 1767000003500);
