//! The store on Redis and Valkey.
