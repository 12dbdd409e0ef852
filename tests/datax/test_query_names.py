"""Columns of a query that have one name twice get another; nothing else of the text changes."""

import pytest

from spark_channel.datax.query_names import with_unique_names


@pytest.mark.parametrize(
    ("dialect", "query", "made"),
    [
        ("mysql", "select a.id, b.id from a join b", "select a.id, b.id AS `id_1` from a join b"),
        (
            "mysql",
            "select a.id, b.ID as Id -- x\nfrom a, b",
            "select a.id, b.ID AS `id_1` -- x\nfrom a, b",
        ),
        (
            "mysql",
            "select if(x=1,',',')') n, y n from t",
            "select if(x=1,',',')') n, y AS `n_1` from t",
        ),
        (
            "postgres",
            "select max(a), max(b) from t",
            'select max(a) AS "c_0", max(b) AS "c_1" from t',
        ),
        (
            "postgres",
            "with e as (select id, id from t) select e.x, (select 1 from d) x from e -- a, b",
            'with e as (select id, id from t) select e.x, (select 1 from d) AS "x_1" from e -- a, b',
        ),
        ("postgres", "select a, b a, c a_1 from t", 'select a, b AS "a_2", c a_1 from t'),
        (
            "postgres",
            "select distinct extract(day from d) x, case when a then b else c end x from t order by 1",
            'select distinct extract(day from d) x, case when a then b else c end AS "x_1" from t order by 1',
        ),
    ],
)
def test_the_later_one_gets_another_name(dialect: str, query: str, made: str) -> None:
    assert with_unique_names(query, dialect) == made


@pytest.mark.parametrize(
    "query",
    [
        "select a, b from t",
        "select a.*, b.* from a, b",
        "select a from t union all select a from u",
        "select replace(v, char(10), ''), concat(a) from t",
        "not a query",
        "select a, a from",
    ],
)
def test_what_is_clear_or_cannot_be_taken_apart_stays(query: str) -> None:
    assert with_unique_names(query, "mysql") == query
