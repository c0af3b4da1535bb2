//! What a cluster says about its slots.

use redis::Value;

/// A range of slots, and who has it.
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) node: String,
}

/// Reads one, as the server at the address `asked` tells it.
pub(super) fn read_range(range: &Value, asked: &str) -> Option<Range> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = parts.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), Value::BulkString(node), ..] = primary.as_slice() else {
        return None;
    };
    let told = if let Value::BulkString(bytes) = host {
        String::from_utf8(bytes.clone()).ok()?
    } else if let Value::SimpleString(host) = host {
        host.clone()
    } else {
        String::new()
    };
    // A node that does not know its own address is where it was asked.
    let host = if told.is_empty() { parse_address(asked)?.0 } else { told };
    Some(Range {
        first: u16::try_from(*first).ok()?,
        last: u16::try_from(*last).ok()?,
        host,
        port: u16::try_from(*port).ok()?,
        node: String::from_utf8(node.clone()).ok()?,
    })
}

/// Splits `host:port`; the host may be an IPv6 address, in brackets or not.
pub(super) fn parse_address(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty()).then_some(())?;
    Some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split_at_the_last_colon() {
        assert_eq!(parse_address("a.example:6379"), Some(("a.example".into(), 6379)));
        assert_eq!(parse_address("[::1]:7000"), Some(("::1".into(), 7000)));
        for bad in ["", ":1", "host", "host:", "host:99999"] {
            assert_eq!(parse_address(bad), None, "{bad}");
        }
    }
}
