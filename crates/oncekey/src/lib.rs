//! Makes any API safe to retry.
