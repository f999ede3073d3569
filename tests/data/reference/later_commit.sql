-- A commit that the reference server appends, in the transaction that has locked the partition: bob adds
-- an entry. {seq} is the number that it draws, {row} the entry.
INSERT INTO sync_partitions(partition, max_commit_seq) VALUES ('default', 1)
  ON CONFLICT (partition) DO UPDATE SET max_commit_seq = sync_partitions.max_commit_seq + 1;
INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
  SELECT 'default', max_commit_seq, 'bob-laptop', 'bob-{seq}', 'bob', 1767000009000, 1
  FROM sync_partitions WHERE partition = 'default';
INSERT INTO todos(_sync_partition, _sync_row_id, id, list_id, title, done, position, notes,
    _sync_server_version, _sync_scopes, _sync_payload, _sync_column_versions)
  VALUES ('default', '{row}', '{row}', 'groceries', 'salt', FALSE, NULL, NULL, 1,
    '{"list_id":"groceries"}', x'{payload}', NULL);
INSERT INTO sync_row_scopes(partition, tbl, var, value, row_id)
  VALUES ('default', 'todos', 'list_id', 'groceries', '{row}');
INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload)
  VALUES ('default', {seq}, 0, 'todos', '{row}', 1, 1, '{"list_id":"groceries"}', x'{payload}');
INSERT INTO sync_change_scopes(partition, tbl, var, value, commit_seq)
  VALUES ('default', 'todos', 'list_id', 'groceries', {seq});
INSERT INTO sync_push_results(partition, client_id, client_commit_id, result)
  VALUES ('default', 'bob-laptop', 'bob-{seq}',
    '{"status":"applied","commitSeq":{seq},"recordedAtMs":1767000009000,"results":[{"opIndex":0,"status":"applied"}]}');
