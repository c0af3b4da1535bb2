//! Webhooks: messages as signed HTTP requests.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::Full;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use oncekey_core::Clock;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{CertificateError, ClientConfig, RootCertStore};

use super::message::Message;
use super::signature::Secret;
use super::sink::{Delivery, Sink};
use crate::clock::SystemClock;

/// Sends each message as a POST request, signed as Standard Webhooks says.
///
/// `webhook-id` and `Idempotency-Key` are the id of the message, the same for every attempt, so that a
/// receiver recognises repetitions by either. A status of 2xx means that it has arrived; 410 means that
/// the receiver wants no more of it; everything else is tried again, after `Retry-After` if the answer
/// has one. Redirects are not followed, because a signed message goes where it was meant to go.
pub struct HttpSink {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: Uri,
    secrets: Vec<Secret>,
    clock: Arc<dyn Clock>,
}

/// An address that nothing can be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadEndpoint {
    /// It is none.
    #[error("a webhook goes to an absolute http or https address without user and password")]
    Address,
    /// Nobody could say whether a receiver is who it says.
    #[error(
        "this machine has no certificates to check https receivers with: install the package \
         ca-certificates, or use `signed_trusting`"
    )]
    NoRoots,
    /// What was given as certificates holds none, or something that is none.
    #[error("certificates of authorities are to be given in PEM form, at least one")]
    Roots,
}

/// The longest `Retry-After` that is believed: a receiver's mistake does not park a message for years.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

impl HttpSink {
    /// Sends to this address and signs with this secret. Receivers with https are checked by the
    /// certificates of the machine.
    ///
    /// # Errors
    /// If it is no address of HTTP, or one of https on a machine without certificates.
    pub fn signed(url: &str, secret: Secret) -> Result<Self, BadEndpoint> {
        let url = address(url)?;
        let mut roots = RootCertStore::empty();
        if url.scheme_str() == Some("https") {
            // One certificate in a thousand that cannot be read is no reason to believe none.
            let found = rustls_native_certs::load_native_certs().certs;
            if roots.add_parsable_certificates(found).0 == 0 {
                return Err(BadEndpoint::NoRoots);
            }
        }
        Self::over(url, secret, roots)
    }

    /// The same for a receiver whose certificate comes from an authority of your own: it is checked by the
    /// certificates in `roots`, in PEM form, and by nothing else.
    ///
    /// # Errors
    /// If it is no address of HTTP, or if a certificate cannot be read or there is none.
    pub fn signed_trusting(url: &str, secret: Secret, roots: &[u8]) -> Result<Self, BadEndpoint> {
        let url = address(url)?;
        let mut store = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(roots) {
            let certificate = certificate.map_err(|_| BadEndpoint::Roots)?;
            store.add(certificate).map_err(|_| BadEndpoint::Roots)?;
        }
        if store.is_empty() {
            return Err(BadEndpoint::Roots);
        }
        Self::over(url, secret, store)
    }

    fn over(url: Uri, secret: Secret, roots: RootCertStore) -> Result<Self, BadEndpoint> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|_| BadEndpoint::NoRoots)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, url, secrets: vec![secret], clock: Arc::new(SystemClock) })
    }

    /// Signs with a second secret, too, while receivers change from one to the other.
    #[must_use]
    pub fn also_signed(mut self, secret: Secret) -> Self {
        self.secrets.push(secret);
        self
    }

    fn request(&self, message: &Message) -> Result<Request<Full<Bytes>>, http::Error> {
        let id = message.id().to_string();
        let seconds = self.clock.now().micros() / 1_000_000;
        let sign = |secret: &Secret| secret.sign(&id, seconds, message.body());
        let signatures: Vec<_> = self.secrets.iter().map(sign).collect();
        let mut request = Request::builder().method(Method::POST).uri(self.url.clone());
        let own = [
            ("webhook-id", id.clone()),
            ("webhook-timestamp", seconds.to_string()),
            ("webhook-signature", signatures.join(" ")),
            ("idempotency-key", format!("\"{id}\"")),
            ("webhook-attempt", message.attempt().to_string()),
        ];
        if let Some(headers) = request.headers_mut() {
            for (name, value) in message.headers() {
                let (Ok(name), Ok(value)) =
                    (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str()))
                else {
                    continue;
                };
                headers.append(name, value);
            }
            // Ours replace what was staged under these names.
            for (name, value) in own {
                headers.insert(HeaderName::from_static(name), HeaderValue::try_from(value)?);
            }
            // The connection decides how the body is framed.
            for name in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::HOST] {
                headers.remove(name);
            }
        }
        request.body(Full::new(message.body().clone()))
    }
}

fn address(url: &str) -> Result<Uri, BadEndpoint> {
    let url: Uri = url.parse().map_err(|_| BadEndpoint::Address)?;
    let known = matches!(url.scheme_str(), Some("http" | "https"));
    let authority = url.authority().map_or("@", http::uri::Authority::as_str);
    if !known || authority.contains('@') { Err(BadEndpoint::Address) } else { Ok(url) }
}

/// What an answer means.
fn meaning(status: StatusCode, retry_after: Option<&str>) -> Delivery {
    if status.is_success() {
        return Delivery::Sent;
    }
    let why = format!("the receiver answered {}", status.as_u16());
    if status == StatusCode::GONE {
        return Delivery::Dead(why);
    }
    let after = retry_after.and_then(|text| text.parse().ok()).map(Duration::from_secs);
    Delivery::Retry { after: after.map(|after| after.min(LONGEST)), why }
}

#[async_trait]
impl Sink for HttpSink {
    async fn deliver(&self, message: &Message) -> Delivery {
        let Ok(request) = self.request(message) else {
            return Delivery::Dead("the message is no request".to_owned());
        };
        match self.client.request(request).await {
            Ok(answer) => {
                let after = answer.headers().get(header::RETRY_AFTER);
                meaning(answer.status(), after.and_then(|value| value.to_str().ok()))
            }
            // Without the text of the error: it may name the address.
            Err(error) if error.is_connect() => {
                Delivery::retry(refusal(&error).unwrap_or("the receiver cannot be reached"))
            }
            Err(_) => Delivery::retry("the receiver did not answer"),
        }
    }
}

/// Why TLS came to nothing, if it did.
fn refusal(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref() {
            return Some(said(error));
        }
        next = match error.downcast_ref::<std::io::Error>() {
            // It would step over what it wraps.
            Some(error) => error.get_ref().map(|inner| -> &(dyn Error + 'static) { inner }),
            None => error.source(),
        };
    }
    None
}

#[expect(clippy::wildcard_enum_match_arm, reason = "there are dozens, and more to come")]
fn said(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidCertificate(why) => match why {
            CertificateError::UnknownIssuer => {
                "the receiver's certificate was refused: no authority that is trusted has signed it"
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the receiver's certificate was refused: it has expired"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the receiver's certificate was refused: it is for another name"
            }
            _ => "the receiver's certificate was refused",
        },
        _ => "the receiver does not speak TLS as it should",
    }
}

impl fmt::Debug for HttpSink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("HttpSink")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_means_what_its_status_says() {
        let of = |status, after| meaning(StatusCode::from_u16(status).unwrap(), after);
        assert_eq!(of(204, None), Delivery::Sent);
        assert!(matches!(of(410, None), Delivery::Dead(_)));
        for status in [301, 400, 404, 429, 500, 503] {
            assert!(matches!(of(status, None), Delivery::Retry { after: None, .. }), "{status}");
        }
        let after = |text| match of(429, Some(text)) {
            Delivery::Retry { after, .. } => after,
            Delivery::Sent | Delivery::Dead(_) => None,
        };
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!(after("99999999999"), Some(LONGEST));
        assert_eq!(after("soon"), None);
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        let secret = Secret::from_bytes([7; 32]).unwrap();
        for url in ["", "/hooks", "ftp://a/", "http://user:pass@a/", "https://"] {
            let refused = HttpSink::signed(url, secret.clone()).map(drop);
            assert_eq!(refused, Err(BadEndpoint::Address), "{url}");
        }
        let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for roots in ["", "no certificate", bad] {
            let url = "https://localhost/";
            let refused = HttpSink::signed_trusting(url, secret.clone(), roots.as_bytes());
            assert_eq!(refused.map(drop), Err(BadEndpoint::Roots), "{roots}");
        }
    }
}
