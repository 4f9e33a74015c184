//! `ShardManagerAdmin`: what operators ask. Every change is logged with who asked and why, before anything is done: a caller that goes
//! away takes nothing of it back. What came of it is a line of its own.

mod ask;
mod moves;
mod pause;
mod removal;

use tonic::{Request, Response, Status};
use tracing::info;

use crate::api::{Leading, Peer, cut, executor_id, status};
use crate::assignment::check;
use crate::assignment::command::{Answer, ExecutorOverview, ExecutorState, Overview};
use crate::assignment::record::{ShardState, Wish};
use crate::coordinator::Call;
use crate::rpc;

/// The service.
pub struct Service(pub Leading);

#[tonic::async_trait]
impl rpc::shard_manager_admin_server::ShardManagerAdmin for Service {
    async fn get_status(&self, _: Request<rpc::GetStatusRequest>) -> Result<Response<rpc::GetStatusResponse>, Status> {
        let overview = overview(&self.0).await?;
        let (mut unassigned, mut releasing) = (0, 0);
        for (_, record) in overview.snapshot.state.shards() {
            match record.state {
                ShardState::Unassigned => unassigned += 1,
                ShardState::Releasing(_) => releasing += 1,
                ShardState::Held(_) => {}
            }
        }
        Ok(Response::new(rpc::GetStatusResponse {
            role: "leader".to_owned(),
            cluster_id: overview.snapshot.state.meta.cluster_id.to_string(),
            version: Some(overview.snapshot.version.into()),
            number_of_shards: overview.snapshot.state.meta.number_of_shards,
            executors: registered(&overview),
            unassigned,
            releasing,
            violations: violations(&overview),
            notes: overview.notes,
            lease_ttl_ms: millis(overview.lease_ttl),
            leader_since: self.0.metrics.leader_since(),
            manager_version: env!("CARGO_PKG_VERSION").to_owned(),
            leader: self.0.identity.clone(),
            rebalancing_paused_until_ms: overview.snapshot.state.meta.pause.as_ref().map_or(0, |pause| pause.until_unix_ms),
        }))
    }

    async fn list_executors(
        &self,
        _: Request<rpc::ListExecutorsRequest>,
    ) -> Result<Response<rpc::ListExecutorsResponse>, Status> {
        let overview = overview(&self.0).await?;
        let executors = overview.executors.into_iter().map(rpc::Executor::from).collect();
        Ok(Response::new(rpc::ListExecutorsResponse { version: Some(overview.snapshot.version.into()), executors }))
    }

    async fn drain_executor(
        &self,
        request: Request<rpc::ChangeExecutorRequest>,
    ) -> Result<Response<rpc::ChangeExecutorResponse>, Status> {
        self.wish(request, Wish::Drain).await
    }

    async fn cordon_executor(
        &self,
        request: Request<rpc::ChangeExecutorRequest>,
    ) -> Result<Response<rpc::ChangeExecutorResponse>, Status> {
        self.wish(request, Wish::Cordon).await
    }

    async fn uncordon_executor(
        &self,
        request: Request<rpc::ChangeExecutorRequest>,
    ) -> Result<Response<rpc::ChangeExecutorResponse>, Status> {
        self.wish(request, Wish::None).await
    }

    async fn remove_executor(
        &self,
        request: Request<rpc::RemoveExecutorRequest>,
    ) -> Result<Response<rpc::ChangeExecutorResponse>, Status> {
        removal::remove(&self.0, request).await.map(Response::new)
    }

    async fn admit_executor(
        &self,
        request: Request<rpc::ChangeExecutorRequest>,
    ) -> Result<Response<rpc::ChangeExecutorResponse>, Status> {
        removal::admit(&self.0, request).await.map(Response::new)
    }

    async fn move_shards(&self, request: Request<rpc::MoveShardsRequest>) -> Result<Response<rpc::MoveShardsResponse>, Status> {
        moves::move_shards(&self.0, request).await.map(Response::new)
    }

    async fn plan_change(&self, request: Request<rpc::PlanChangeRequest>) -> Result<Response<rpc::PlanChangeResponse>, Status> {
        ask::plan(&self.0, request).await.map(Response::new)
    }

    async fn explain_shard(
        &self,
        request: Request<rpc::ExplainShardRequest>,
    ) -> Result<Response<rpc::ExplainShardResponse>, Status> {
        ask::explain(&self.0, request).await.map(Response::new)
    }

    async fn pause_rebalancing(
        &self,
        request: Request<rpc::PauseRebalancingRequest>,
    ) -> Result<Response<rpc::PauseRebalancingResponse>, Status> {
        pause::pause(&self.0, request).await.map(Response::new)
    }

    async fn resume_rebalancing(
        &self,
        request: Request<rpc::ResumeRebalancingRequest>,
    ) -> Result<Response<rpc::ResumeRebalancingResponse>, Status> {
        pause::resume(&self.0, request).await.map(Response::new)
    }

    async fn step_down(&self, request: Request<rpc::StepDownRequest>) -> Result<Response<rpc::StepDownResponse>, Status> {
        let peer = peer(&request);
        let request = request.into_inner();
        info!(
            asked_by = asker(&request.asked_by),
            reason = cut(&request.reason),
            peer,
            "an operator asked this leader to step down"
        );
        self.0.step_down.cancel();
        Ok(Response::new(rpc::StepDownResponse { leader: self.0.identity.clone() }))
    }
}

impl Service {
    async fn wish(
        &self,
        request: Request<rpc::ChangeExecutorRequest>,
        wish: Wish,
    ) -> Result<Response<rpc::ChangeExecutorResponse>, Status> {
        let peer = peer(&request);
        let request = request.into_inner();
        let (executor, asked_by, reason) = (cut(&request.executor_id), asker(&request.asked_by), cut(&request.reason));
        info!(executor, ?wish, asked_by, reason, peer, "an operator asks for a change");
        let answer = self.make(&request.executor_id, wish).await;
        info!(executor, ?wish, asked_by, outcome = outcome(&answer), "a change that an operator asked for");
        answer.map(Response::new)
    }

    async fn make(&self, id: &str, wish: Wish) -> Result<rpc::ChangeExecutorResponse, Status> {
        match self.0.handle.call(Call::Wish(executor_id(id)?, wish)).await? {
            Answer::Current(version) => Ok(rpc::ChangeExecutorResponse { version: Some(version.into()) }),
            _ => Err(status::unexpected()),
        }
    }
}

/// Where a request comes from, for the log.
fn peer<T>(request: &Request<T>) -> String {
    request.extensions().get::<Peer>().map(|peer| peer.0.to_string()).unwrap_or_default()
}

/// Who asks, for the log: as the caller says.
fn asker(asked_by: &str) -> String {
    if asked_by.is_empty() { "unknown".to_owned() } else { cut(asked_by) }
}

/// What came of it, for the log.
fn outcome<T>(answer: &Result<T, Status>) -> String {
    answer.as_ref().err().map_or_else(|| "in force".to_owned(), |status| status.message().to_owned())
}

/// How many processes are registered: whose id is removed, or whose lease is over, is none of them.
fn registered(overview: &Overview) -> u32 {
    let counts = |it: &&ExecutorOverview| !matches!(it.state, ExecutorState::Removed | ExecutorState::Lapsed);
    u32::try_from(overview.executors.iter().filter(counts).count()).unwrap_or(u32::MAX)
}

/// What the checker finds wrong. Looked for here and not by the coordinator, which has better things to do.
pub(super) fn violations(overview: &Overview) -> Vec<String> {
    check::check(&overview.snapshot.state).iter().map(ToString::to_string).collect()
}

/// How things are.
pub(super) async fn overview(leading: &Leading) -> Result<Overview, Status> {
    match leading.handle.call(Call::Inspect).await? {
        Answer::Overview(overview) => Ok(overview),
        _ => Err(status::unexpected()),
    }
}

impl From<ExecutorOverview> for rpc::Executor {
    fn from(executor: ExecutorOverview) -> Self {
        rpc::Executor {
            id: executor.id.to_string(),
            incarnation: executor.incarnation.0,
            endpoint: executor.endpoint,
            state: executor.state.to_string(),
            weight: executor.weight,
            shards: executor.shards,
            lease_remaining_ms: millis(executor.lease_remaining),
            stopping: executor.stopping,
            starting: executor.starting,
        }
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
