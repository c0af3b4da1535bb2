//! What `run` would refuse about a configuration, found out without opening or starting anything.
//!
//! Files that are not here are left out: a configuration is often checked where its secrets are not.

use std::path::Path;

use crate::config::{Config, ErrorFormat, JwtKeys};
use crate::exit::{self, Exit};
use crate::keeping;
use crate::proxy::ErrorDialect;
use crate::serve::{terms, token};
use crate::telemetry::trace::Tracer;
use crate::token::Verifier;

/// A setting that `run` looks into more closely than the table of settings does.
struct Scene {
    setting: &'static str,
    /// What has to be there to try it.
    files: fn(&Config) -> Vec<&Path>,
    play: fn(&Config) -> Result<(), Exit>,
}

const SCENES: [Scene; 8] = [
    Scene { setting: "telemetry.otlp", files: |_| Vec::new(), play: Tracer::check },
    Scene {
        setting: "store.url",
        files: |_| Vec::new(),
        play: |config| keeping::check_url(&config.store),
    },
    Scene {
        setting: "store.pepper_file",
        files: |config| config.store.pepper_file.iter().map(AsRef::as_ref).collect(),
        play: |config| keeping::pepper(&config.store).map(drop),
    },
    Scene {
        setting: "store.encrypt_with_files",
        files: |config| config.store.encrypt_with_files.iter().map(AsRef::as_ref).collect(),
        play: |config| keeping::key_ring(&config.store).map(drop),
    },
    Scene {
        setting: "admin.token_file",
        files: |config| config.admin.token_file.iter().map(AsRef::as_ref).collect(),
        play: |config| token(config).map(drop),
    },
    Scene {
        setting: "server.tls.cert_file",
        files: certificates,
        play: |config| terms(config).map(drop),
    },
    Scene { setting: "errors.template_file", files: template, play: dialect },
    Scene { setting: "jwt.algorithm", files: verifying, play: verifier },
];

/// Each setting that `run` would refuse, and in which words.
pub(crate) fn refusals(config: &Config) -> Vec<(&'static str, Exit)> {
    let here = |scene: &&Scene| (scene.files)(config).iter().all(|file| file.exists());
    let played = SCENES.iter().filter(here).map(|scene| (scene.setting, (scene.play)(config)));
    played.filter_map(|(setting, played)| Some((setting, played.err()?))).collect()
}

fn certificates(config: &Config) -> Vec<&Path> {
    let Some(tls) = &config.server.tls else { return Vec::new() };
    let files = [&tls.cert_file, &tls.key_file].into_iter().chain(&tls.client_ca_file);
    files.map(AsRef::as_ref).collect()
}

fn template(config: &Config) -> Vec<&Path> {
    match &config.errors.format {
        ErrorFormat::Template { file, .. } => vec![file],
        ErrorFormat::Problem | ErrorFormat::Stripe => Vec::new(),
    }
}

fn dialect(config: &Config) -> Result<(), Exit> {
    let dialect = ErrorDialect::new(&config.errors).map(drop);
    dialect.map_err(|error| {
        Exit::chain(exit::INVALID, "errors.template_file cannot be used", Some(&error))
    })
}

fn verifying(config: &Config) -> Vec<&Path> {
    let keys = config.jwt.iter().map(|jwt| match &jwt.keys {
        JwtKeys::One(file) | JwtKeys::Set(file) => file.as_path(),
    });
    keys.collect()
}

fn verifier(config: &Config) -> Result<(), Exit> {
    let verifier = config.jwt.as_ref().map(Verifier::new).transpose().map(drop);
    verifier.map_err(|error| Exit::chain(exit::INVALID, "tokens cannot be verified", Some(&error)))
}
