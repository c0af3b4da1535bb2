//! Why a client was stopped.

/// Writes the table below as an enum and what is said about each of its variants.
macro_rules! violations {
    ($($name:ident $status:literal $label:literal $text:literal;)+) => {
        /// One reason to stop a client. Nothing here repeats what the client sent.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(in crate::proxy) enum Violation {
            $(#[doc = $text] $name,)+
        }

        impl Violation {
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$name),+];

            /// The status to answer with.
            pub(in crate::proxy) fn status(self) -> u16 {
                match self { $(Self::$name => $status,)+ }
            }

            /// Its name in logs, metrics and tests.
            pub(in crate::proxy) fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }

            /// What to tell the client.
            pub(in crate::proxy) fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
}

violations! {
    // Line ends.
    BareLf 400 "bare_lf" "a line ends with LF alone";
    BareCr 400 "bare_cr" "a CR stands alone";
    Fold 400 "fold" "a field line begins with white space";
    EmptyLines 400 "empty_lines" "more than one empty line comes before a request line";

    // The request line.
    RequestLine 400 "request_line" "the request line is not: method, target, version";
    Method 400 "method" "the method is not a token";
    MethodCase 400 "method_case" "the method has a letter in lower case";
    LineTooLong 414 "line_too_long" "the request line is too long";
    TargetByte 400 "target_byte" "the request target has a byte that must be percent-encoded";
    Fragment 400 "fragment" "the request target has a fragment";
    TargetForm 400 "target_form" "the request target has a form that does not fit the method";
    Version 505 "version" "the version is neither HTTP/1.0 nor HTTP/1.1";

    // Fields.
    FieldName 400 "field_name" "a field line has no name that is a token before its colon";
    FieldValue 400 "field_value" "a field value has a control character";
    Twin 400 "twin" "a field name with an underscore could be taken for a protected field";
    TooManyFields 431 "too_many_fields" "the head has too many fields";
    HeadTooLarge 431 "head_too_large" "the head is too large";
    HostMissing 400 "host_missing" "there is no Host field";
    HostRepeated 400 "host_repeated" "there is more than one Host field";
    Host 400 "host" "the Host field is not a host with an optional port";
    HostDiffers 400 "host_differs" "the request target names another authority than Host";
    Connection 400 "connection" "the Connection field is not a list of tokens";
    Expectation 417 "expectation" "the Expect field asks for more than 100-continue";

    // Where the body ends.
    Length 400 "length" "the Content-Length field is not one plain number";
    LengthRepeated 400 "length_repeated" "there is more than one Content-Length field";
    LengthAndCoding 400 "length_and_coding" "Content-Length and Transfer-Encoding are both there";
    Coding 400 "coding" "the Transfer-Encoding field is malformed";
    CodingUnknown 501 "coding_unknown" "no transfer coding but chunked is understood";
    CodingRepeated 400 "coding_repeated" "there is more than one Transfer-Encoding field";
    CodingInOldVersion 400 "coding_in_old_version" "HTTP/1.0 has no transfer codings";
    BodyNotAllowed 400 "body_not_allowed" "a request with this method has no body";
    BodyTooLarge 413 "body_too_large" "the body is too large";

    // Chunks.
    ChunkSize 400 "chunk_size" "a chunk size is not a plain hexadecimal number";
    ChunkLineTooLong 400 "chunk_line_too_long" "the line before a chunk is too long";
    Extension 400 "extension" "a chunk extension is malformed";
    ExtensionsTooLarge 413 "extensions_too_large" "the chunk extensions are too large";
    ChunkEnd 400 "chunk_end" "no CRLF follows the data of a chunk";
    TrailerName 400 "trailer_name" "a field that must not be a trailer is one";
    TooManyTrailers 431 "too_many_trailers" "the body has too many trailers";
    TrailersTooLarge 431 "trailers_too_large" "the trailers are too large";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_reason_has_a_label_of_its_own() {
        let labels: HashSet<_> = Violation::ALL.iter().map(|violation| violation.label()).collect();
        assert_eq!(labels.len(), Violation::ALL.len());
    }

    #[test]
    fn every_status_blames_the_client_or_says_what_is_not_supported() {
        for violation in Violation::ALL {
            let status = violation.status();
            assert!((400..500).contains(&status) || matches!(status, 501 | 505), "{violation:?}");
            assert!(!violation.text().is_empty());
        }
    }
}
