//! `Host`: what it may be, and how often.

use super::{Table, bare};

const FINE: &str = "\
a a.example A.Example a.example:80 a.example:65535 a.example. my_service my-service:8080 10.0.0.1 \
10.0.0.1:8080 [::1] [::1]:80 [2001:db8::1] [::ffff:10.0.0.1] xn--caf-dma.example localhost:3000 \
a:00080";

const MALFORMED: &str = "\
|:80|a:|a:0|a:00|a:65536|a:99999999999|a:-1|a:+80|a: 80|a:80 80|a:80:80|a:http|a b|a\tb|u@a|u:p@a|a@|\
a/|a/b|http://a|a?b|a#b|a\\b|a,b|a, b|a;b|a%2eb|a%00|\"a\"|<a>|a{b}|caf\u{e9}|\u{3002}|[::1|::1|[]|\
[::1%25eth0]|[fe80::1%eth0]|[v1.a]|[::1]a|[a]|[127.0.0.1]|[::1]:|[::1]:0|[[::1]]|a]|*|a'b|$(a)";

pub(super) fn fill(table: &mut Table) {
    for host in FINE.split(' ') {
        for (style, field) in [
            ("", format!("Host: {host}\r\n")),
            (", no space", format!("Host:{host}\r\n")),
            (", spaces", format!("host: \t {host} \t\r\n")),
        ] {
            let name = format!("{host}{style}");
            table.fine(&name, bare("GET / HTTP/1.1", &format!("X: y\r\n{field}Z: z\r\n")), "");
            let target = format!("GET http://{host}/ HTTP/1.1");
            table.fine(&format!("{name}, and in the target"), bare(&target, &field), "");
        }
    }
    for host in MALFORMED.split('|') {
        for line in ["GET / HTTP/1.1", "GET / HTTP/1.0"] {
            let request = bare(line, &format!("Host: {host}\r\n"));
            table.bad(&format!("{line}, {host}"), request, "host");
        }
    }
    for fields in [
        "Host: a\r\nHost: a\r\n",
        "Host: a\r\nHost: b\r\n",
        "Host: a\r\nX: y\r\nhost: a\r\n",
        "HOST: a\r\nhost: a\r\nHost: a\r\n",
    ] {
        for line in ["GET / HTTP/1.1", "GET / HTTP/1.0", "GET http://a/ HTTP/1.1"] {
            table.bad(&format!("{line}, {fields}"), bare(line, fields), "host_repeated");
        }
    }
    for fields in ["", "X-Host: a\r\n", "X-Forwarded-Host: a\r\n", "Hosts: a\r\n"] {
        for line in ["GET / HTTP/1.1", "OPTIONS * HTTP/1.1", "GET http://a/ HTTP/1.1"] {
            table.bad(&format!("none, {line}, {fields}"), bare(line, fields), "host_missing");
        }
    }
    for (field, by) in [("Host : a", "field_name"), (" Host: a", "fold"), ("Host", "field_name")] {
        table.bad(field, bare("GET / HTTP/1.1", &format!("{field}\r\n")), by);
    }
    let old = "Connection: keep-alive\r\n";
    table.fine("none in HTTP/1.0", bare("GET / HTTP/1.0", old), "");
}
