//! A client on one end of a pipe and a reader on the other.
