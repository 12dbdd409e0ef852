"""Schemas of MySQL and MariaDB."""

SAKILA = """
CREATE TABLE country (country_id SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT, country VARCHAR(50) NOT NULL,
  last_update TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, PRIMARY KEY (country_id));
CREATE TABLE city (city_id SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT, city VARCHAR(50) NOT NULL,
  country_id SMALLINT UNSIGNED NOT NULL, PRIMARY KEY (city_id), KEY idx_fk_country_id (country_id),
  CONSTRAINT fk_city_country FOREIGN KEY (country_id) REFERENCES country (country_id)
  ON DELETE RESTRICT ON UPDATE CASCADE);
CREATE TABLE film (film_id SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, title VARCHAR(128) NOT NULL,
  rating ENUM('G','PG','R') DEFAULT 'G', features SET('Trailers','Scenes') DEFAULT NULL,
  rental_rate DECIMAL(4,2) NOT NULL DEFAULT 4.99, KEY idx_title (title));
CREATE TABLE film_text (film_id SMALLINT NOT NULL PRIMARY KEY, title VARCHAR(255) NOT NULL, description TEXT,
  FULLTEXT KEY idx_title_description (title, description));
INSERT INTO country (country) VALUES ('Åland'), ('Chad');
INSERT INTO city (city, country_id) VALUES ('Eckerö', 1);
INSERT INTO film (title, features) VALUES ('One', 'Trailers,Scenes');
INSERT INTO film_text VALUES (1, 'One', 'of one');
"""
CHINOOK = """
CREATE TABLE `Artist` (`ArtistId` INT NOT NULL, `Name` NVARCHAR(120), CONSTRAINT `PK_Artist` PRIMARY KEY (`ArtistId`));
CREATE TABLE `Album` (`AlbumId` INT NOT NULL PRIMARY KEY, `Title` NVARCHAR(160) NOT NULL, `ArtistId` INT NOT NULL,
  CONSTRAINT `FK_AlbumArtistId` FOREIGN KEY (`ArtistId`) REFERENCES `Artist` (`ArtistId`));
CREATE TABLE `Employee` (`EmployeeId` INT NOT NULL PRIMARY KEY, `ReportsTo` INT,
  CONSTRAINT `FK_ReportsTo` FOREIGN KEY (`ReportsTo`) REFERENCES `Employee` (`EmployeeId`));
INSERT INTO `Artist` VALUES (1, 'AC/DC');
INSERT INTO `Album` VALUES (1, 'One', 1);
INSERT INTO `Employee` VALUES (1, NULL), (2, 1);
"""
EVERY_KIND = """
CREATE TABLE kinds (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT, a VARCHAR(40) CHARACTER SET latin1 DEFAULT 'it''s',
  b TEXT, c DECIMAL(10,2) DEFAULT 0.00, d INT GENERATED ALWAYS AS (c * 2) STORED, e VARCHAR(9) COMMENT 'with , and `',
  f DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6), g BIT(9), h YEAR, i BINARY(4), PRIMARY KEY (id),
  UNIQUE KEY u (a, e), KEY part (b(20)), KEY down (c DESC, id), CONSTRAINT positive CHECK (c >= 0)
) AUTO_INCREMENT=500 COMMENT='of every kind';
INSERT INTO kinds (a, c, i) VALUES ('x', 1, 'abcd'), ('y', 2, NULL);
"""
SCHEMAS = {"sakila": SAKILA, "chinook": CHINOOK, "every_kind": EVERY_KIND}
