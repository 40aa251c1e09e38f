"""The whole product on one machine without containers: embedded stores, one supervisor, `make up`."""
