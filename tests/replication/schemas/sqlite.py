"""Schemas of SQLite."""

CHINOOK = """
CREATE TABLE [Artist] ([ArtistId] INTEGER NOT NULL, [Name] NVARCHAR(120),
  CONSTRAINT [PK_Artist] PRIMARY KEY ([ArtistId]));
CREATE TABLE [Album] ([AlbumId] INTEGER NOT NULL, [Title] NVARCHAR(160) NOT NULL, [ArtistId] INTEGER NOT NULL,
  CONSTRAINT [PK_Album] PRIMARY KEY ([AlbumId]), FOREIGN KEY ([ArtistId]) REFERENCES [Artist] ([ArtistId])
  ON DELETE NO ACTION ON UPDATE NO ACTION);
CREATE UNIQUE INDEX [IPK_Artist] ON [Artist] ([ArtistId]);
CREATE INDEX [IFK_AlbumArtistId] ON [Album] ([ArtistId]);
INSERT INTO [Artist] VALUES (1, 'AC/DC'), (2, 'Accept');
INSERT INTO [Album] VALUES (1, 'It''s', 1), (2, 'Balls', 2);
"""
EVERY_KIND = """
CREATE TABLE kinds (id INTEGER PRIMARY KEY AUTOINCREMENT, a TEXT COLLATE NOCASE DEFAULT 'it''s', b REAL CHECK (b >= 0),
  c INTEGER GENERATED ALWAYS AS (id * 2) VIRTUAL, d INTEGER AS (id + 1) STORED, e BLOB DEFAULT x'00', f TEXT UNIQUE,
  g TEXT DEFAULT CURRENT_TIMESTAMP, CONSTRAINT both UNIQUE (a, f));
CREATE INDEX kinds_lower ON kinds (lower(f)) WHERE f IS NOT NULL;
CREATE INDEX kinds_down ON kinds (a COLLATE BINARY DESC, b);
CREATE TABLE strict_one (k TEXT NOT NULL, n INT NOT NULL, v ANY, PRIMARY KEY (k, n)) STRICT, WITHOUT ROWID;
CREATE TABLE "odd "" name" (id INTEGER PRIMARY KEY, "order" TEXT REFERENCES kinds (f));
INSERT INTO kinds (a, b, f) VALUES ('x', 1.5, 'p'), ('y', NULL, 'q');
INSERT INTO strict_one VALUES ('x', 1, 'text'), ('x', 2, 'more');
INSERT INTO "odd "" name" VALUES (1, 'p'), (2, NULL);
"""
SCHEMAS = {"chinook": CHINOOK, "every_kind": EVERY_KIND}
