//! `ShardManager`: what executors and callers ask.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::api::{
    Invalid, Leading, cluster_id, endpoint, executor_id, holdings, incarnation, invalid, status, version, watch, weight,
};
use crate::assignment::command::{Answer, LeaseAnswer};
use crate::assignment::event::{Claim, Departure, Registration, Renewal};
use crate::coordinator::{Call, Failure};
use crate::metrics::RenewalOutcome;
use crate::published::Edition;
use crate::rpc;
use crate::rpc::ready::{self, Message};
use crate::types::{ClusterId, Version};

/// The service.
pub struct Service(pub Leading);

#[tonic::async_trait]
impl ready::shard_manager_server::ShardManager for Service {
    async fn register(&self, request: Request<rpc::RegisterRequest>) -> Result<Response<rpc::LeaseAnswer>, Status> {
        let registration = registration(&request.into_inner())?;
        lease(self.0.handle.call(Call::Register(registration)).await)
    }

    async fn renew_lease(&self, request: Request<rpc::RenewLeaseRequest>) -> Result<Response<rpc::LeaseAnswer>, Status> {
        let renewal = renewal(&request.into_inner(), self.0.number_of_shards)?;
        let answer = self.0.handle.call(Call::Renew(renewal)).await;
        self.0.metrics.renewed(match &answer {
            Ok(_) => RenewalOutcome::Renewed,
            Err(Failure::Refused(_)) => RenewalOutcome::Refused,
            Err(Failure::Stopping | Failure::Cut | Failure::TooSlow(_)) => RenewalOutcome::Unanswered,
        });
        lease(answer)
    }

    async fn deregister(&self, request: Request<rpc::DeregisterRequest>) -> Result<Response<rpc::DeregisterResponse>, Status> {
        let departure = departure(&request.into_inner())?;
        self.0.handle.call(Call::Deregister(departure)).await?;
        Ok(Response::new(rpc::DeregisterResponse {}))
    }

    /// Reads what is published. Only a caller that has seen a higher version of this cluster than that makes the coordinator act:
    /// it catches up in term before the answer (L10).
    async fn get_routing_table(&self, request: Request<rpc::GetRoutingTableRequest>) -> Result<Response<Message>, Status> {
        let rpc::GetRoutingTableRequest { cluster_id, known } = request.into_inner();
        let edition = newest(&self.0, known_table(&cluster_id, known)?).await?;
        Ok(Response::new(Message::new(edition.table())))
    }

    type WatchRoutingTableStream = watch::Changes;

    /// Begins as `get_routing_table` does.
    async fn watch_routing_table(
        &self,
        request: Request<rpc::WatchRoutingTableRequest>,
    ) -> Result<Response<watch::Changes>, Status> {
        let rpc::WatchRoutingTableRequest { cluster_id, known } = request.into_inner();
        let known = known_table(&cluster_id, known)?;
        newest(&self.0, known).await?;
        Ok(Response::new(watch::begin(&self.0, known, watch::Times::default())))
    }
}

/// The newest edition, once it is at or above what a caller knows of this cluster (L10).
async fn newest(leading: &Leading, known: Option<(ClusterId, Version)>) -> Result<Arc<Edition>, Status> {
    if leading.handle.is_stopping() {
        return Err(status::stopping());
    }
    let edition = leading.published.current().ok_or_else(status::not_ready)?;
    let Some(seen) = edition.is_behind(known) else { return Ok(edition) };
    leading.handle.call(Call::Heard(seen)).await?;
    leading.published.current().ok_or_else(status::not_ready)
}

fn lease(answer: Result<Answer, Failure>) -> Result<Response<rpc::LeaseAnswer>, Status> {
    match answer? {
        Answer::Lease(lease) => Ok(Response::new(lease.into())),
        _ => Err(status::unexpected()),
    }
}

impl From<LeaseAnswer> for rpc::LeaseAnswer {
    fn from(answer: LeaseAnswer) -> Self {
        rpc::LeaseAnswer {
            cluster_id: answer.cluster_id.to_string(),
            version: Some(answer.version.into()),
            number_of_shards: answer.number_of_shards,
            lease_ttl_ms: u64::try_from(answer.lease_ttl.as_millis()).unwrap_or(u64::MAX),
            assignment: answer.assignment.as_ref().map(rpc::Holdings::from),
            claim_wanted: answer.claim_wanted,
        }
    }
}

pub(crate) fn registration(request: &rpc::RegisterRequest) -> Result<Registration, Invalid> {
    let mark = version("mark", request.mark)?;
    let before = match request.cluster_id.as_str() {
        "" => None,
        cluster => Some((cluster_id(cluster)?, mark)),
    };
    Ok(Registration {
        id: executor_id(&request.executor_id)?,
        incarnation: incarnation(request.incarnation)?,
        endpoint: endpoint(&request.endpoint)?,
        weight: weight(request.weight)?,
        before,
    })
}

pub(crate) fn renewal(request: &rpc::RenewLeaseRequest, number_of_shards: u32) -> Result<Renewal, Invalid> {
    use rpc::renew_lease_request::Claim as Sent;
    Ok(Renewal {
        id: executor_id(&request.executor_id)?,
        incarnation: incarnation(request.incarnation)?,
        cluster_id: cluster_id(&request.cluster_id)?,
        mark: version("mark", request.mark)?,
        claim: match &request.claim {
            Some(Sent::Held(held)) => Claim::Full(holdings("held", Some(held), number_of_shards)?),
            Some(Sent::Digest(digest)) => Claim::Digest(*digest),
            None => return Err(invalid("claim", "it is missing: a renewal says what is held, as `held` or as `digest`")),
        },
        leaving: request.leaving,
        storage_epochs: holdings("storage_epochs", request.storage_epochs.as_ref(), number_of_shards)?,
    })
}

pub(crate) fn departure(request: &rpc::DeregisterRequest) -> Result<Departure, Invalid> {
    Ok(Departure {
        id: executor_id(&request.executor_id)?,
        incarnation: incarnation(request.incarnation)?,
        cluster_id: cluster_id(&request.cluster_id)?,
    })
}

/// What a reader has, if anything.
fn known_table(cluster: &str, known: Option<rpc::Version>) -> Result<Option<(ClusterId, Version)>, Invalid> {
    let known = version("known", known)?;
    match cluster {
        "" if known == Version::default() => Ok(None),
        "" => Err(invalid(
            "cluster_id",
            format!("it is empty, but known is {known}: a version means something only with its cluster"),
        )),
        cluster => Ok(Some((cluster_id(cluster)?, known))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Incarnation;

    const CLUSTER: &str = "00000000-0000-0000-0000-000000000007";

    #[test]
    fn a_registration_is_checked_field_by_field() {
        let good = rpc::RegisterRequest {
            executor_id: "a".to_owned(),
            incarnation: 5,
            endpoint: "127.0.0.1:7000".to_owned(),
            weight: 0,
            cluster_id: String::new(),
            mark: None,
        };
        let taken = registration(&good).unwrap();
        assert_eq!((taken.incarnation, taken.weight, taken.before), (Incarnation(5), 1, None));
        let cluster = ClusterId(uuid::Uuid::from_u128(7));
        let moved = rpc::RegisterRequest { cluster_id: CLUSTER.to_owned(), ..good.clone() };
        assert_eq!(registration(&moved).unwrap().before, Some((cluster, Version::default())));
        let field = |request: rpc::RegisterRequest| registration(&request).unwrap_err().field;
        assert_eq!(field(rpc::RegisterRequest { executor_id: "a b".to_owned(), ..good.clone() }), "executor_id");
        assert_eq!(field(rpc::RegisterRequest { incarnation: 0, ..good.clone() }), "incarnation");
        assert_eq!(field(rpc::RegisterRequest { endpoint: "nowhere".to_owned(), ..good.clone() }), "endpoint");
        assert_eq!(field(rpc::RegisterRequest { weight: 5000, ..good.clone() }), "weight");
        assert_eq!(field(rpc::RegisterRequest { cluster_id: "x".to_owned(), ..good.clone() }), "cluster_id");
        assert_eq!(field(rpc::RegisterRequest { mark: Some(rpc::Version { term: u64::MAX, revision: 0 }), ..good }), "mark");
    }

    #[test]
    fn a_renewal_says_what_is_held() {
        let good = rpc::RenewLeaseRequest {
            executor_id: "a".to_owned(),
            incarnation: 5,
            cluster_id: CLUSTER.to_owned(),
            claim: Some(rpc::renew_lease_request::Claim::Digest(9)),
            ..rpc::RenewLeaseRequest::default()
        };
        assert_eq!(renewal(&good, 4).unwrap().claim, Claim::Digest(9));
        assert_eq!(renewal(&rpc::RenewLeaseRequest { claim: None, ..good.clone() }, 4).unwrap_err().field, "claim");
        let beyond = rpc::Holdings { shards: vec![4], epochs: vec![1] };
        let claimed = Some(rpc::renew_lease_request::Claim::Held(beyond.clone()));
        assert_eq!(renewal(&rpc::RenewLeaseRequest { claim: claimed, ..good.clone() }, 4).unwrap_err().field, "held");
        let stored = rpc::RenewLeaseRequest { storage_epochs: Some(beyond), ..good };
        assert_eq!(renewal(&stored, 4).unwrap_err().field, "storage_epochs");
    }
}
