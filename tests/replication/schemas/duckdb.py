"""Schemas of DuckDB, which has no foreign keys in a copy."""

TPCH = """
CREATE TABLE region (r_regionkey INTEGER PRIMARY KEY, r_name VARCHAR NOT NULL, r_comment VARCHAR);
CREATE TABLE lineitem (l_orderkey BIGINT NOT NULL, l_linenumber INTEGER NOT NULL, l_quantity DECIMAL(15,2) NOT NULL,
  l_shipdate DATE NOT NULL, PRIMARY KEY (l_orderkey, l_linenumber));
CREATE INDEX lineitem_by_date ON lineitem (l_shipdate);
INSERT INTO region VALUES (1, 'EUROPE', NULL), (2, 'ASIA', 'of it');
INSERT INTO lineitem VALUES (1, 1, 2, '1995-02-01'), (1, 2, 3, '1995-02-02');
"""
EVERY_KIND = """
CREATE SEQUENCE numbers START 100 INCREMENT BY 10;
CREATE TABLE kinds (id BIGINT DEFAULT nextval('numbers') PRIMARY KEY, a VARCHAR DEFAULT 'it''s',
  b DOUBLE CHECK (b >= 0), c BIGINT GENERATED ALWAYS AS (id * 2) VIRTUAL,
  d INTEGER NOT NULL UNIQUE, e TIMESTAMPTZ, f VARCHAR COLLATE NOCASE,
  g UUID, h HUGEINT, UNIQUE (a, d));
CREATE INDEX kinds_sum ON kinds ((d + 1));
CREATE UNIQUE INDEX kinds_unique ON kinds (d, f);
COMMENT ON TABLE kinds IS 'of every kind';
COMMENT ON COLUMN kinds.a IS 'it''s said';
INSERT INTO kinds (b, d, f) VALUES (1.5, 1, 'p'), (NULL, 2, 'q');
"""
SCHEMAS = {"tpch": TPCH, "every_kind": EVERY_KIND}
