"""How Alembic runs our migrations: on the connection, and in the transaction, that it is handed."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    version_table_schema=context.config.attributes.get("version_table_schema"),
)
with context.begin_transaction():
    context.run_migrations()
