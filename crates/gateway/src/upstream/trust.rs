//! Whom to believe on the way to the upstream.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use super::target::{Target, Tls};

/// The certificates that upstreams are checked against.
#[derive(Clone, Debug)]
pub(crate) struct Trust(Arc<RootCertStore>);

/// Why there is nobody to believe.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrustError {
    #[error("cannot read the certificates in {0}")]
    File(PathBuf, #[source] rustls::pki_types::pem::Error),
    #[error("a certificate in {0} cannot be used")]
    Certificate(PathBuf, #[source] rustls::Error),
    #[error("{0} holds no certificate")]
    Empty(PathBuf),
    #[error(
        "this machine has no certificates to check https upstreams with; install the package \
         ca-certificates, or set server.upstream_ca_file"
    )]
    NoRoots,
}

impl Trust {
    /// Believes nobody: for upstreams without TLS.
    pub(crate) fn nobody() -> Self {
        Self(Arc::new(RootCertStore::empty()))
    }

    /// Believes what the machine believes.
    pub(crate) fn of_machine() -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        // One certificate in a thousand that cannot be read is no reason to believe none.
        let (added, _) =
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if added == 0 {
            return Err(TrustError::NoRoots);
        }
        Ok(Self(Arc::new(roots)))
    }

    /// Believes the certificates in a file, and nothing else.
    pub(crate) fn of_file(path: &Path) -> Result<Self, TrustError> {
        let unread = |error| TrustError::File(path.to_owned(), error);
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(path).map_err(unread)? {
            let added = roots.add(certificate.map_err(unread)?);
            added.map_err(|error| TrustError::Certificate(path.to_owned(), error))?;
        }
        if roots.is_empty() {
            return Err(TrustError::Empty(path.to_owned()));
        }
        Ok(Self(Arc::new(roots)))
    }

    /// How to speak TLS with a target; `None` if it does not.
    pub(super) fn client(&self, target: &Target) -> Option<Arc<ClientConfig>> {
        if target.tls == Tls::Plain {
            return None;
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider knows the versions of its own library");
        let mut config = config.with_root_certificates(Arc::clone(&self.0)).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Some(Arc::new(config))
    }
}
