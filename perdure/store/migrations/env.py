"""Run by alembic: applies versions on the connection, and in the transaction, that the store opened."""

from alembic import context

from perdure.store.migrations import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    transactional_ddl=True,  # SQLite's DDL is transactional; alembic assumes that it is not
)
with context.begin_transaction():
    context.run_migrations()
