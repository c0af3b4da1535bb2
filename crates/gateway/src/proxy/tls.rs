//! Encryption for clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest as _, Sha256};

use crate::config::ServerTls;

/// Why clients cannot be served with TLS.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("cannot read {0}: it holds certificates or a key in PEM")]
    File(PathBuf, #[source] rustls::pki_types::pem::Error),
    #[error("{0} holds no certificate")]
    Empty(PathBuf),
    #[error("the certificate and the key do not fit, or cannot be used")]
    Pair(#[source] rustls::Error),
    #[error("clients cannot be checked against {0}")]
    Clients(PathBuf, #[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Encryption as it was read from its files.
#[derive(Clone, Debug)]
pub(crate) struct Encryption {
    pub(super) config: Arc<ServerConfig>,
    /// Tells certificates apart.
    digest: [u8; 32],
}

/// Two are equal if clients see the same certificate.
impl PartialEq for Encryption {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

/// Reads the files. They are read again when the configuration is.
///
/// TLS early data stays off: it can be replayed by anybody on the way (T26).
pub(crate) fn server(files: &ServerTls) -> Result<Encryption, TlsError> {
    let chain = certificates(&files.cert_file)?;
    let digest = chain.iter().fold(Sha256::new(), Sha256::chain_update).finalize().into();
    let key = PrivateKeyDer::from_pem_file(&files.key_file)
        .map_err(|error| TlsError::File(files.key_file.clone(), error))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Pair)?;
    let builder = match &files.client_ca_file {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let refused = |error: Box<dyn std::error::Error + Send + Sync>| {
                TlsError::Clients(path.clone(), error)
            };
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| refused(error.into()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| refused(error.into()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Encryption { config: Arc::new(config), digest })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unread = |error| TlsError::File(path.to_owned(), error);
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(unread)?.collect();
    let certificates = certificates.map_err(unread)?;
    if certificates.is_empty() {
        return Err(TlsError::Empty(path.to_owned()));
    }
    Ok(certificates)
}
