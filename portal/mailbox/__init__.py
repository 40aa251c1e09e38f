"""The development mailbox: without a mail server, mails are kept as files and read on a page of the portal."""
