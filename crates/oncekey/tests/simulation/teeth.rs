//! Every rule of the checker can fail.
