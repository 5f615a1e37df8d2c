"""One matrix product per expert, over that expert's rows: contract and backends."""
