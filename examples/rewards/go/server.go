// A reward server in Go: 1 if the last number of the response is the ground truth, else 0.
//
//	server PORT [DATA_SOURCE…]     port 0: a free one; no data source: any
package main

import (
	"context"
	"fmt"
	"log"
	"math"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"

	common "argosy/api/common/v1"
	pb "argosy/api/reward/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

const limit = 256
const maxBytes = 64 << 20 // of a message: gRPC's own default of 4 MB is too little

var number = regexp.MustCompile(`-?\d[\d,]*(?:\.\d+)?`)

type server struct {
	pb.UnimplementedRewardServiceServer
	sources []string
	known   map[string]bool // by source; "*": any
}

// truth is the item's ground truth; a number is written the same as text and as JSON.
func truth(item *pb.ScoreItem) (float64, error) {
	text := item.GetGroundTruthText() + item.GetGroundTruthJson() // only one of them is set
	number, err := strconv.ParseFloat(strings.ReplaceAll(strings.TrimSpace(text), ",", ""), 64)
	if err == nil && (math.IsNaN(number) || math.IsInf(number, 0)) {
		err = fmt.Errorf("%s is no finite number", text)
	}
	return number, err
}

func (s *server) judge(item *pb.ScoreItem) *pb.ScoreResult {
	failed := func(reason, message string) *pb.ScoreResult { // never a 0, and never an error of the call
		outcome := &pb.ScoreResult_Failed{Failed: &pb.Failed{Reason: reason, Message: strings.ToValidUTF8(message, "")}}
		return &pb.ScoreResult{SampleId: item.SampleId, Outcome: outcome}
	}
	if !s.known[item.DataSource] && !s.known["*"] {
		return failed("unknown_data_source", "no scorer for "+item.DataSource)
	}
	want, err := truth(item)
	if err != nil {
		return failed("bad_ground_truth", fmt.Sprintf("%.200s", err))
	}
	pred, score := "", 0.0
	if all := number.FindAllString(item.ResponseText, -1); len(all) > 0 && len(all[len(all)-1]) <= 64 {
		pred = strings.ReplaceAll(all[len(all)-1], ",", "")
	}
	if got, err := strconv.ParseFloat(pred, 64); err == nil && got == want {
		score = 1
	}
	scored := &pb.Scored{Score: &score, Parts: map[string]*common.ScalarValue{
		"acc":  {Value: &common.ScalarValue_Flag{Flag: score == 1}},
		"pred": {Value: &common.ScalarValue_Text{Text: pred}},
	}}
	return &pb.ScoreResult{SampleId: item.SampleId, Outcome: &pb.ScoreResult_Scored{Scored: scored}}
}

func (s *server) Score(ctx context.Context, request *pb.ScoreRequest) (*pb.ScoreResponse, error) {
	if n := len(request.Items); n > limit {
		return nil, status.Errorf(codes.InvalidArgument, "%d items, at most %d are taken", n, limit)
	}
	response := &pb.ScoreResponse{}
	for _, item := range request.Items {
		if ctx.Err() != nil { // the deadline has passed, or the caller has gone
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		response.Results = append(response.Results, s.judge(item))
	}
	return response, nil
}

func (s *server) GetCapabilities(context.Context, *pb.GetCapabilitiesRequest) (*pb.GetCapabilitiesResponse, error) {
	return &pb.GetCapabilitiesResponse{DataSources: s.sources, MaxBatchSize: limit, Name: "go-example", Version: "1"}, nil
}

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: server PORT [DATA_SOURCE…]")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Args[1]) // calls are neither encrypted nor authenticated
	if err != nil {
		log.Fatal(err)
	}
	scorer := &server{sources: os.Args[2:], known: map[string]bool{}}
	if len(scorer.sources) == 0 {
		scorer.sources = []string{"*"}
	}
	for _, source := range scorer.sources {
		scorer.known[source] = true
	}
	grpcServer := grpc.NewServer(grpc.MaxRecvMsgSize(maxBytes), grpc.MaxSendMsgSize(maxBytes))
	pb.RegisterRewardServiceServer(grpcServer, scorer)
	healthpb.RegisterHealthServer(grpcServer, health.NewServer())
	reflection.Register(grpcServer)
	fmt.Printf("listening on %s\n", listener.Addr())
	log.Fatal(grpcServer.Serve(listener))
}
