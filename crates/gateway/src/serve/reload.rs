//! A new configuration in the place of the old one.

use std::sync::Arc;

use tokio::task::spawn_blocking;

use super::{Gate, Started, terms, token};
use crate::admin::Reload;
use crate::config::Config;
use crate::exit::Exit;
use crate::keeping;
use crate::plan::Plan;
use crate::proxy::Terms;

impl Gate {
    /// Puts a new configuration in the place of the old one, or nothing at all. Everything that can
    /// fail comes before the first thing that is changed.
    pub(super) fn replace(&self, new: Config, reload: Reload) -> Result<Vec<String>, String> {
        let said = |exit: Exit| exit.text().to_owned();
        let old = self.config.load();
        let plan = Plan::new(&new, &self.keeping, &self.front.tracer).map_err(said)?;
        // What holds only after a restart must not be what keeps the program from starting then.
        keeping::check(&new.store).map_err(said)?;
        let terms = terms(&new).map_err(said)?;
        let token = token(&new).map_err(said)?;
        let (notable, plain) = (self.notable(&old, &new, &terms), old.differs(&new));
        if reload == Reload::DryRun {
            return Ok(notable.into_iter().chain(plain).collect());
        }
        self.access.renew(token).map_err(|exposed| exposed.to_string())?;
        self.keeping.probes.replace(plan.knowers.clone());
        self.front.plan.store(Arc::new(plan));
        self.terms.store(Arc::new(terms));
        self.config.store(Arc::new(new));
        plain.iter().for_each(|change| tracing::info!(change, "config changed"));
        notable.iter().for_each(|change| tracing::warn!(change, "config changed"));
        tracing::info!("config reloaded");
        Ok(notable.into_iter().chain(plain).collect())
    }

    /// Reads the configuration where it may take long: a network file system that is away blocks.
    pub(super) async fn load(&self) -> Result<Config, String> {
        let origin = self.origin.clone();
        let read = move || match origin.load() {
            Ok(config) => (config.files.clone(), Ok(config)),
            Err(exit) => (origin.files(), Err(exit.text().to_owned())),
        };
        let (files, loaded) = spawn_blocking(read).await.map_err(|error| error.to_string())?;
        self.tried.store(Arc::new(files));
        loaded
    }

    /// What a person has to know about a new configuration, besides what differs.
    fn notable(&self, old: &Config, new: &Config, terms: &Terms) -> Vec<String> {
        let Started { config, files } = &self.started;
        let restart = config.needs_restart(new).into_iter().map(str::to_owned);
        let rewritten = files.iter().zip(new.fixed_files()).filter(|(old, new)| *old != new);
        let rewritten = rewritten.map(|((name, _), _)| format!("what stands in {name}"));
        let mut said: Vec<String> = restart
            .chain(rewritten)
            .map(|what| format!("{what} has changed and holds only after a restart"))
            .collect();
        said.extend(old.runs_again(new));
        let before = self.terms.load();
        said.extend(match (&before.tls, &terms.tls) {
            (Some(old), Some(new)) if old != new => {
                Some("clients that connect from now on see the new certificate".to_owned())
            }
            (None, Some(_)) => Some("clients have to speak TLS from now on".to_owned()),
            (Some(_), None) => Some("clients are served without TLS from now on".to_owned()),
            (Some(_), Some(_)) | (None, None) => None,
        });
        if before.deadlines != terms.deadlines {
            said.push("the new timeouts hold for clients that connect from now on".to_owned());
        }
        said
    }
}
