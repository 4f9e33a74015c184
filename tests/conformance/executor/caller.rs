//! What it says of its own accord: registers, renews, and takes its leave.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use shard_manager::clock;
use shard_manager::rpc;
use shard_manager::rpc::shard_manager_client::ShardManagerClient;
use shard_manager::types::BootInstant;
use tokio::sync::Notify;
use tonic::transport::Channel;

use super::State;
use crate::flaw::Flaw;

pub(super) struct Caller {
    pub(super) client: ShardManagerClient<Channel>,
    pub(super) endpoint: String,
    pub(super) state: Arc<Mutex<State>>,
    pub(super) news: Arc<Notify>,
}

impl Caller {
    /// Until the end of the process.
    pub(super) async fn live(mut self) {
        loop {
            let (registers, is_done, until, ttl) = {
                let mut state = self.state.lock().unwrap();
                state.look();
                let is_done = state.is_leaving && state.everything().is_empty() && state.flaw != Flaw::NeverDeregisters;
                (!state.is_registered, is_done, state.lease_until, state.lease_ttl)
            };
            let (has_ended, says_farewell) = {
                let state = self.state.lock().unwrap();
                (state.has_ended, state.is_superseded && state.flaw != Flaw::SaysNoFarewell)
            };
            if says_farewell {
                return self.say_farewell().await;
            }
            if has_ended {
                return;
            }
            if is_done {
                return self.say_farewell().await;
            }
            let sent = clock::now();
            // A call in flight does not keep it from looking at its lease.
            let is_late = self.state.lock().unwrap().flaw == Flaw::FencesLate;
            let until = until.filter(|_| !registers && !is_late).unwrap_or(sent.after(ttl));
            let is_answered = tokio::select! {
                is_answered = self.call(registers, sent, ttl / 3) => is_answered,
                () = clock::sleep_until(until) => false,
            };
            self.pause(sent, is_answered, registers, ttl).await;
        }
    }

    async fn call(&mut self, registers: bool, sent: BootInstant, patience: Duration) -> bool {
        let state = Arc::clone(&self.state);
        let incarnation = state.lock().unwrap().incarnation;
        if registers {
            let request = state.lock().unwrap().registration(&self.endpoint);
            match self.client.register(request).await {
                Ok(answer) => state.lock().unwrap().answered(sent, incarnation, None, answer.get_ref()),
                Err(_) => return false,
            }
            return true;
        }
        let request = state.lock().unwrap().renewal();
        let claim = request.claim.clone();
        match tokio::time::timeout(patience, self.client.renew_lease(request)).await {
            Ok(Ok(answer)) => state.lock().unwrap().answered(sent, incarnation, claim.as_ref(), answer.get_ref()),
            Ok(Err(status)) => {
                state.lock().unwrap().refused(&status);
                return false;
            }
            Err(_) => return false,
        }
        true
    }

    /// A third of the lease from the sending; less with news, and after a failure.
    async fn pause(&self, sent: BootInstant, is_answered: bool, registered: bool, ttl: Duration) {
        let (flaw, has_news, ttl) = {
            let state = self.state.lock().unwrap();
            (state.flaw, state.has_news(), if is_answered { state.lease_ttl } else { ttl })
        };
        if flaw == Flaw::RegistersWhileStopping && has_news && registered {
            return clock::sleep_until(sent.after(ttl / 3)).await;
        }
        let is_late = flaw == Flaw::RenewsLate || flaw == Flaw::RenewsLateAtFirst && registered;
        if !is_answered {
            return clock::sleep_until(clock::now().after(Duration::from_millis(50))).await;
        }
        if is_late {
            return clock::sleep_until(sent.after(ttl * 3 / 4)).await;
        }
        if has_news {
            return clock::sleep_until(clock::now().after(Duration::from_millis(20))).await;
        }
        tokio::select! {
            () = clock::sleep_until(sent.after(ttl / 3)) => {}
            () = self.news.notified() => clock::sleep_until(clock::now().after(Duration::from_millis(5))).await,
        }
    }

    async fn say_farewell(&mut self) {
        let request = {
            let mut state = self.state.lock().unwrap();
            state.has_ended = true;
            let (incarnation, cluster_id) = (state.incarnation, state.cluster_id.clone());
            rpc::DeregisterRequest { executor_id: "by-hand".to_owned(), incarnation, cluster_id }
        };
        let _ = self.client.deregister(request).await;
    }
}
