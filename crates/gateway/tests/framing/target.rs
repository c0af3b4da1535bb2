//! Request lines: forms of targets, what may stand in them, and versions.

use super::{Table, bare};

const HOST: &str = "Host: a.example\r\n";

const FINE: &str = "\
/ // //a.example/ /./ /../ /%2F /%2e%2e/ /%00 /;a=b /a;b/c /? /?? /?a=1&a=2 /?b&a /?a=+&b=%20 /?=1 \
/?a=http://b/ /a:b@c /% /%zz /a|b /?` /?a={b} /?a[]=1 /~a /' /* /a,b /!$&()+= /HTTP/1.1 \
http://a.example/ http://a.example http://a.example?x HTTP://A.EXAMPLE/ https://a.example/x?y \
http://a.example//b/";

/// Targets of a form that fits only another method, or none.
const FORMLESS: &str = "\
* a.example:80 a.example ?a . .. a/b ftp://a.example/ http:/a.example/ http:a.example \
http//a.example ws://a.example/ javascript:1 %2F **";

/// What is not a host with a port.
const PORTLESS: &str = "\
/ * a.example a.example: a.example:0 http://a.example:80/ u@a.example:80 a.example:80/ :80 \
a.example:65536 a.example:80:80";

pub(super) fn fill(table: &mut Table) {
    for target in FINE.split(' ') {
        let request = bare(&format!("GET {target} HTTP/1.1"), HOST);
        table.fine(&format!("GET {target}"), request, "");
    }
    for target in ["*", "/", "http://a.example/"] {
        let request = bare(&format!("OPTIONS {target} HTTP/1.1"), HOST);
        table.fine(&format!("OPTIONS {target}"), request, "");
    }
    for (method, targets) in [("GET", FORMLESS), ("CONNECT", PORTLESS)] {
        for line in targets.split(' ').map(|target| format!("{method} {target}")) {
            table.bad(&line, bare(&format!("{line} HTTP/1.1"), HOST), "target_form");
        }
    }
    table.bad("OPTIONS **", bare("OPTIONS ** HTTP/1.1", HOST), "target_form");
    for target in "/a\\b /` \\ /\" /<a> /a>b /caf\u{e9} /\u{202e} /?\u{ff0f}".split(' ') {
        table.bad(target, bare(&format!("GET {target} HTTP/1.1"), HOST), "target_byte");
    }
    for target in ["/#", "/#a", "/?a#b", "http://a.example/#a", "#", "*#"] {
        table.bad(target, bare(&format!("GET {target} HTTP/1.1"), HOST), "fragment");
    }
    authorities(table);
    shapes(table);
}

/// What a target says about the host has to be what `Host` says.
fn authorities(table: &mut Table) {
    for (target, host) in [
        ("http://b.example/", "a.example"),
        ("http://a.example:80/", "a.example"),
        ("http://a.example/", "a.example:80"),
        ("http://a.example./", "a.example"),
        ("http://u@a.example/", "a.example"),
        ("http://a.example@b.example/", "a.example"),
        ("http://u:p@a.example/", "a.example"),
        ("http:///", "a.example"),
        ("http://", "a.example"),
        ("http://?a.example", "a.example"),
        ("http://a.example:0/", "a.example"),
        ("https://a%2eexample/", "a.example"),
    ] {
        let request = bare(&format!("GET {target} HTTP/1.1"), &format!("Host: {host}\r\n"));
        table.bad(&format!("{target} for {host}"), request, "host_differs");
    }
    for (target, host) in [("a.example:443", "a.example"), ("b.example:443", "a.example:443")] {
        let request = bare(&format!("CONNECT {target} HTTP/1.1"), &format!("Host: {host}\r\n"));
        table.bad(&format!("CONNECT {target} for {host}"), request, "host_differs");
    }
    let old = bare("GET http://a.example/ HTTP/1.0", "");
    table.bad("a target with a host and no Host, in HTTP/1.0", old, "host_differs");
}

/// Lines that are not: method, target, version.
const SHAPELESS: &str = "\
GET;GET ;GET /;GET / ;GET  / HTTP/1.1;GET /  HTTP/1.1;GET / HTTP/1.1 ;GET / HTTP/1.1 x;\
GET /a b HTTP/1.1;GET / http/1.1;GET / Http/1.1;GET / HTTP/1;GET / HTTP/1.;GET / HTTP/.1;\
GET / HTTP/1.10;GET / HTTP/01.1;GET / HTTP/1,1;GET / HTTP 1.1;GET / HTTP/ 1.1;GET / HTTPS/1.1;\
GET / HTTP/1.x;GET / XHTTP/1.1;GET / ICY/1.1;GET / HTTP/-1.1;GET / HTTP/1.1/";

fn shapes(table: &mut Table) {
    for line in SHAPELESS.split(';') {
        table.bad(&format!("line {line}"), bare(line, HOST), "request_line");
    }
    for method in ["GET\t/", "GET/", "G(T", "GET:", "\"GET\"", "G\u{c9}T", "G=T", "[]"] {
        let line = format!("{method} / HTTP/1.1");
        table.bad(&format!("line {line}"), bare(&line, HOST), "method");
    }
    for version in ["0.9", "1.2", "1.9", "2.0", "3.0", "9.9", "0.0"] {
        let line = format!("GET / HTTP/{version}");
        table.bad(&line, bare(&line, HOST), "version");
    }
    table.bad("the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "version");
    for method in ["get", "post", "Post", "pOST", "POSt", "x-custom"] {
        let line = format!("{method} / HTTP/1.1");
        table.bad(&line, bare(&line, HOST), "method_case");
    }
    for method in ["G", "X-CUSTOM", "!#$%&'*+-.^_`|~", "PROPFIND", "0"] {
        let line = format!("{method} / HTTP/1.1");
        table.fine(&line, bare(&line, HOST), "");
    }
}
