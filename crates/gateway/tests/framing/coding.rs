//! `Transfer-Encoding`: its spellings, in both versions.

use super::{Table, bare, post};

const BODY: &str = "5\r\nhello\r\n0\r\n\r\n";

/// Field lines with what is wrong with them.
const MALFORMED: &[(&str, &str)] = &[
    ("Transfer-Encoding:", "coding"),
    ("Transfer-Encoding: ", "coding"),
    ("Transfer-Encoding: chunked,", "coding"),
    ("Transfer-Encoding: ,chunked", "coding"),
    ("Transfer-Encoding: chunked, chunked", "coding"),
    ("Transfer-Encoding: chunked, identity", "coding"),
    ("Transfer-Encoding: chunked, gzip", "coding"),
    ("Transfer-Encoding: chunked ", "coding"),
    ("Transfer-Encoding: chunked\t", "coding"),
    ("Transfer-Encoding:  chunked", "coding"),
    ("Transfer-Encoding:\tchunked", "coding"),
    ("Transfer-Encoding: \tchunked", "coding"),
    ("Transfer-Encoding: \"chunked\"", "coding"),
    ("Transfer-Encoding: 'chunked' x", "coding"),
    ("Transfer-Encoding: chunked;q=1", "coding"),
    ("Transfer-Encoding: chun ked", "coding"),
    ("Transfer-Encoding: chunked x", "coding"),
    ("Transfer-Encoding: chunked\u{a0}", "coding"),
    ("Transfer-Encoding: \u{212a}chunked", "coding"),
    ("Transfer-Encoding: chunKed\u{130}", "coding"),
    ("Transfer-Encoding: xchunked", "coding_unknown"),
    ("Transfer-Encoding: chunkedx", "coding_unknown"),
    ("Transfer-Encoding: 'chunked'", "coding_unknown"),
    ("Transfer-Encoding: identity", "coding_unknown"),
    ("Transfer-Encoding: identity, chunked", "coding_unknown"),
    ("Transfer-Encoding: gzip", "coding_unknown"),
    ("Transfer-Encoding: gzip, chunked", "coding_unknown"),
    ("Transfer-Encoding: gzip,deflate,chunked", "coding_unknown"),
    ("Transfer-Encoding: cow", "coding_unknown"),
    ("Transfer-Encoding: chunke", "coding_unknown"),
    ("Transfer-Encoding: \u{b}chunked", "field_value"),
    ("Transfer-Encoding: chunked\u{b}", "field_value"),
    ("Transfer-Encoding: \u{c}chunked", "field_value"),
    ("Transfer-Encoding: \0chunked", "field_value"),
    ("Transfer-Encoding: chunked\u{7f}", "field_value"),
    ("Transfer-Encoding : chunked", "field_name"),
    ("Transfer-Encoding\t: chunked", "field_name"),
    ("Transfer Encoding: chunked", "field_name"),
    ("Transfer-Encoding\u{b}: chunked", "field_name"),
    ("Transfer-Encoding\0: chunked", "field_name"),
    ("\"Transfer-Encoding\": chunked", "field_name"),
    (" Transfer-Encoding: chunked", "fold"),
    ("\tTransfer-Encoding: chunked", "fold"),
    ("X: y\r\n Transfer-Encoding: chunked", "fold"),
    ("Transfer-Encoding:\r\n chunked", "coding"),
    ("Transfer-Encoding: chunked\r\n , gzip", "fold"),
    ("Transfer-Encoding\r\n : chunked", "field_name"),
    ("X: y\nTransfer-Encoding: chunked", "bare_lf"),
    ("X: y\rTransfer-Encoding: chunked", "bare_cr"),
    ("Transfer-Encoding: chunked\r", "bare_cr"),
    ("Transfer-Encoding:\rchunked", "bare_cr"),
    ("Transfer_Encoding: chunked", "twin"),
    ("TRANSFER_ENCODING: chunked", "twin"),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "coding_repeated"),
    ("Transfer-Encoding: chunked\r\nX: y\r\ntransfer-encoding: chunked", "coding_repeated"),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "coding_unknown"),
    ("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", "coding_unknown"),
];

pub(super) fn fill(table: &mut Table) {
    for field in [
        "Transfer-Encoding: chunked",
        "Transfer-Encoding:chunked",
        "transfer-encoding: chunked",
        "TRANSFER-ENCODING: chunked",
        "Transfer-Encoding: Chunked",
        "Transfer-Encoding: CHUNKED",
    ] {
        table.fine(field, post(format!("{field}\r\n"), BODY), "hello");
        let old = bare("POST / HTTP/1.0", &format!("Host: a\r\n{field}\r\n"));
        let old = [&old[..], BODY.as_bytes()].concat();
        table.bad(&format!("{field}, in HTTP/1.0"), old, "coding_in_old_version");
    }
    for (field, by) in MALFORMED {
        table.bad(field, post(format!("{field}\r\n"), BODY), by);
        let old = bare("POST / HTTP/1.0", &format!("Host: a\r\n{field}\r\n"));
        let old = [&old[..], BODY.as_bytes()].concat();
        table.bad(&format!("{field}, in HTTP/1.0"), old, by);
    }
    for field in ["TE: trailers", "TE: chunked", "Accept-Encoding: chunked", "Trailer: x-sum"] {
        table.fine(field, post(format!("{field}\r\n"), ""), "");
    }
}
