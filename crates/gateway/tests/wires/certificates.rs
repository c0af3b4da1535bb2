//! The certificates in `tests/features/tls`, which are good until 2120 but for `stale`, and what
//! programs need of them. `ca` signed `server`, `acme`, `acme2` and `robot`; `ca2` the others.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::common::script::file;

pub(crate) fn path(name: &str) -> PathBuf {
    file("features/tls").join(format!("{name}.pem"))
}

/// Puts a certificate and its key where only we can read it, in one step: nobody sees half of it.
pub(crate) fn install(name: &str, at: &Path) {
    let new = at.with_extension("new");
    fs::copy(path(name), &new).unwrap();
    fs::set_permissions(&new, Permissions::from_mode(0o600)).unwrap();
    fs::rename(new, at).unwrap();
}

fn pair(name: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let certificate = CertificateDer::from_pem_file(path(name)).unwrap();
    (vec![certificate], PrivateKeyDer::from_pem_file(path(name)).unwrap())
}

/// A server with a certificate that offers these protocols.
pub(crate) fn server(name: &str, protocols: &[&[u8]]) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth();
    let (chain, key) = pair(name);
    let mut config = config.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}

/// A client that believes both authorities, offers these protocols, and may have a name.
pub(crate) fn client(name: Option<&str>, protocols: &[&[u8]]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in ["ca", "ca2"] {
        roots.add(CertificateDer::from_pem_file(path(authority)).unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match name.map(pair) {
        None => config.with_no_client_auth(),
        Some((chain, key)) => config.with_client_auth_cert(chain, key).unwrap(),
    };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}
